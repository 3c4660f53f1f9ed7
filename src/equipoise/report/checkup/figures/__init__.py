"""The check-up's figures."""
