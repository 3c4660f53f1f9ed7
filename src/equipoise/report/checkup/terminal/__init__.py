"""The check-up in the terminal."""
