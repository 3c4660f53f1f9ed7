"""Numerical methods; they know nothing of models."""
