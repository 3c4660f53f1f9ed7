"""What a check-up's report says, wherever it is shown."""
