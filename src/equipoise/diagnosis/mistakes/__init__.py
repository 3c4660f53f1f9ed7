"""Mistakes that show in one pass, whatever theory says of the network."""
