"""Numerical methods without deep learning in them; rooms import the modules they need."""
