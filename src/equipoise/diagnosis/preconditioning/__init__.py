"""What preconditioning would do to condition numbers."""
