"""How deep normalised networks train: Figs. 2 and 4."""
