"""Floor 3: the step, the loop, its callbacks and the command line; composes all other rooms.

Lives here: optimizer, schedule, the compiled training step, callbacks, configuration of a run, launching.
Does not live here: anything that another room could own without knowing the loop.
"""
