"""Losses whose least value is not at right answers."""
