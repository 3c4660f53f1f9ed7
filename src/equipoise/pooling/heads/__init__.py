"""Layers from feature maps to vectors."""
