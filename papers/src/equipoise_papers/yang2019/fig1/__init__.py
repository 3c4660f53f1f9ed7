"""The panels of Fig. 1."""
