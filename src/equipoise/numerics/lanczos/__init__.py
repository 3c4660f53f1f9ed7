"""Extremal eigenvalues of operators known only through products."""
