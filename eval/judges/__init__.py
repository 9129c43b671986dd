"""Who judges texts besides rules: an HTTP endpoint, people."""
