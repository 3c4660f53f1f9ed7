"""Record what one forward pass does."""
