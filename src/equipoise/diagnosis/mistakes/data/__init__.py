"""Inputs and targets, before anything is learnt of them."""
