"""Health rules: what a run's figures must not do, what to try first, and what follows."""
