"""The user's own optimiser: what it holds, and what its steps do to the loss."""
