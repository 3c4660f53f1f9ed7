"""Compute a sample of published records anew, and compare."""
