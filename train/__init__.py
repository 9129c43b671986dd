"""Floor 3: the step, the loop, its callbacks and the command line; composes all other rooms.

Lives here: optimizer, schedule, the compiled training step, callbacks, configuration of a run, launching.
Does not live here: anything that another room could own without knowing the loop.
"""

# Before `import mindspore`, which sets protobuf to its pure Python implementation unless it is there already: that takes five
# times as long for TensorBoard's events.
import google.protobuf.internal.api_implementation  # noqa: F401
