"""Networks with batch norm, deep enough for all samples to be alike."""
