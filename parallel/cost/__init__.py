"""The closed-form model of one 3D-parallel training step of a GPT: parameters, memory, FLOPs, communication, time, advice.

Plain arithmetic on `Sizes` and `Plan`, with no device. Parameters, communication and kept activations are exactly what
MindSpore 2.10 compiles (tests hold them to it); times, and memory beyond these, are estimates. Reading order: sizes, plan,
parameters, flops, balance, memory, communication, estimate, advice, scaling.
"""
