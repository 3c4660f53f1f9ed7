"""How model, data and loss are made to fit together, and what is assumed on the way."""
