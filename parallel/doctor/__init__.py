"""Is this machine, and are these nodes, fit to train? `bash run_scripts/doctor.sh`.

Runs before anything is installed, and under a Python that is too old to be any use: the standard library alone, syntax of Python
3.8, no import of other modules of this project.
"""
