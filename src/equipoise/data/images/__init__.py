"""Image sets from their published files, and their augmentation."""
