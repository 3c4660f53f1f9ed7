"""Sequences: what models see of them, and what they are to predict."""
