"""Remedies tried by training side by side."""
