"""Sums and products of two tensors."""
