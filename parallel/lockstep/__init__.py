"""Execute, in numpy, the graphs that MindSpore's auto-parallel compiler made for all ranks of a job, together, in lockstep.

`mindir` reads a compiled graph, `kernels` are its operators, `rank` executes one rank up to its next communication, `schedule`
drives all ranks, `layout` cuts parameters as a rank holds them. No device and no MindSpore kernel takes part.
"""
