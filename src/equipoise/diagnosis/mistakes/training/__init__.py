"""Layers and gradients that hold training up."""
