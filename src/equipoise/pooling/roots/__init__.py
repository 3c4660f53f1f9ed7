"""Powers and logarithms of positive semidefinite matrices."""
