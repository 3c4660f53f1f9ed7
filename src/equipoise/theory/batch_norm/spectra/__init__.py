"""Eigenvalues at the fixed point."""
