"""The words of a check-up's report, for terminal and page alike."""
