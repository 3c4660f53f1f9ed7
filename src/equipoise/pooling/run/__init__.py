"""Rank-1 update normalisation."""
