"""The closed-form model of one 3D-parallel training step of a GPT: parameters, memory, FLOPs, communication, time, advice.

Plain arithmetic on `Sizes` and `Plan`, on no device: everything here is an estimate, except where a docstring says that it is
held against compiled graphs. Reading order: sizes, balance, parameters, memory, flops, communication, estimate, advice.
"""
