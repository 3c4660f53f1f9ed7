"""Measure a training while it runs."""
