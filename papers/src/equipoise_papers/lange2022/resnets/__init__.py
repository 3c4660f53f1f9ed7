"""Residual networks: Figs. 6 and 7."""
