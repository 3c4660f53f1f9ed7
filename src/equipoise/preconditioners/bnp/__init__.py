"""Batch normalisation preconditioning: what is attached to a training."""
