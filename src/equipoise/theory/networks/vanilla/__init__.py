"""Networks without normalisation."""
