"""Averages over one and two samples of a batch: all that the theory is made of."""
