"""Activations: values, slopes and kinks."""
