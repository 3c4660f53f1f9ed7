"""Preconditioning tried in short trainings side by side."""
