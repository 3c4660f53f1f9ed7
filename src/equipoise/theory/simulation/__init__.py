"""The theory's own random networks at finite width."""
