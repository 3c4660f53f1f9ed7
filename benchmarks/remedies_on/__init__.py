"""Networks and tasks that remedies are tried on, and the machinery of both benchmarks."""
