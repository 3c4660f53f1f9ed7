"""How far gradients are reliable."""
