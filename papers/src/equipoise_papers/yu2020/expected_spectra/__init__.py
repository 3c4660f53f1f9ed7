"""What rank-1 update normalisation does to a spectrum on average."""
