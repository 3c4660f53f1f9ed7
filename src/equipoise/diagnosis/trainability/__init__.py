"""Will a network train? A probability, from few quantities of its initialisation."""
