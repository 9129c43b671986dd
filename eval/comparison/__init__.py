"""Two checkpoints or runs side by side."""
