"""How far gradients can be trusted."""
