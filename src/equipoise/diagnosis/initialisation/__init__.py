"""Which initialiser each weight follows, and which one it was meant to follow."""
