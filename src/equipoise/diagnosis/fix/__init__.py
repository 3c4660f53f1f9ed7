"""Remedies: proposed by theory, trained beside the model as it is, ranked, and handed over."""
