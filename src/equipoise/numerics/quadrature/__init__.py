"""Rules for averages over normal numbers and points on spheres."""
