"""Attention without a softmax."""
