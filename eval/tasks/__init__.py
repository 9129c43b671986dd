"""Questions that likelihood decides: made of held-out text, or shipped."""
