"""Floor 2: the full training state on disk: write, find, read, rotate, convert.

Lives here: the layout of a checkpoint, its atomic writing, its verification, Hugging Face conversion.
Does not live here: when to save (`train`), what the parameters mean (`model`). Imports `parallel` at most.
"""
