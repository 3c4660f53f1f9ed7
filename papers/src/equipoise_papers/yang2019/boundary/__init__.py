"""Where networks stop to train."""
