"""Floor 1: text, tokenizer, MindRecord, and the ordered, resumable dataset.

Lives here: reading and cleaning text, the tokenizer, packing, the sample order, the MindSpore datasets.
Does not live here: what is learned from a batch (`model`, `train`). Imports `parallel` at most.
"""
