"""One report of every figure and table."""
