"""What each kind of edit does to a model, to its traced graph, and in code."""
