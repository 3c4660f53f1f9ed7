"""A probe in the terminal, as a page and as JSON."""
