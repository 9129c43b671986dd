"""Floor 2: metrics and the tiers' code, the same during and after training.

Lives here: metrics, validation, sample generation for inspection, their reports.
Does not live here: when to evaluate (`train`), how a checkpoint is stored (`ckpt`).
"""
