"""Profiles of a run: when they are taken, how the profiler's files are read, what they say. No MindSpore here."""
