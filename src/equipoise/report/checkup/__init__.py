"""A check-up in the terminal, as a page and as JSON."""
