"""Averages over one and two samples of a batch, from which every formula is built."""
