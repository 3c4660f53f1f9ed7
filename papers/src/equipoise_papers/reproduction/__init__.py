"""Compute, keep, draw and judge experiments."""
