"""The law of two outputs of one batch at ε > 0, as one integral over a disc."""
