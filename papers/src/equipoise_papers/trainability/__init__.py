"""Which networks train, and how well that is known before: thousands of small trainings."""
