"""Where a step that is not finite breaks first: the same step again, cell by cell, and what is said of it."""
