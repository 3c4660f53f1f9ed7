"""How layers map the covariance of a batch."""
