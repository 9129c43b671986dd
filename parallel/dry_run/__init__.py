"""MindSpore's own compiler for Ascend, on a machine that has no device (its DryRun): the graphs of any rank of a plan.

Lives here: the environment in which MindSpore's Ascend plugin loads (`cann`, and `stand_ins` where CANN is not installed),
and the processes that compile many ranks in bounded memory (`pool`, `server`, `memory`).
Does not live here: what is compiled. A job's entry function builds the network, compiles it and writes what it wants to keep.
"""
