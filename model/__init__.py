"""Floor 1: the GPT, its loss and its generation.

Lives here: cells, their initialisation, their fast CPU forms, decoding.
Does not live here: where tokens come from (`data`), how weights change (`train`). Imports `parallel` at most.
"""
