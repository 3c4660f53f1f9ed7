"""Batch normalisation of one unit: exact statements about its loss."""
