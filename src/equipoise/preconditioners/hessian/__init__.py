"""What the preconditioner does to a layer's Hessian, as explicit float64 matrices."""
