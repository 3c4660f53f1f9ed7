"""What the first training steps do to weights and gradients: Fig. 3."""
