"""Solve for the fixed point, and bound every number's error."""
