"""Theory's prediction for each normaliser of a traced model."""
