"""Curvature of the loss."""
