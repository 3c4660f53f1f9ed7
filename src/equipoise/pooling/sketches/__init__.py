"""Compact approximations of bilinear features."""
