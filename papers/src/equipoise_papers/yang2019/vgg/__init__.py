"""VGG19 with batch norm: Figs. 5 and 6."""
