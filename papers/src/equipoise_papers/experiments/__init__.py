"""What an experiment is: cells to compute, a figure to draw, a claim to judge."""
