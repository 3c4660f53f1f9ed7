"""Outputs that do not fit the operations of a loss."""
