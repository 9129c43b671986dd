"""Floor 0: the mesh and its rules, collectives for metrics, and what every room needs to start: errors and config files.

Lives here: rank arithmetic, MindSpore's distributed context, sums over ranks, the strict YAML reader, the doctor.
Does not live here: anything that knows what a model, a token or a checkpoint is. Imports no other room.
"""
