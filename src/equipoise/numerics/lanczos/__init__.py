"""Extremal eigenvalues from products alone."""
