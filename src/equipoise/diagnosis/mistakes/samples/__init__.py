"""Samples, their padding and their targets, and who sees which."""
