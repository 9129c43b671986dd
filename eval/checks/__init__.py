"""What a text is checked for: instructions followed, safety."""
