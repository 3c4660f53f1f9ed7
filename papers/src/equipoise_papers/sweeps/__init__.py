"""Grids of independent cells: computed in parallel, stored one by one, merged."""
