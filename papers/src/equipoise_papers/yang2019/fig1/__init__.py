"""Theory against random networks: the panels of Fig. 1."""
