"""Judge each parameter: by the law that an init function draws, or by what its siblings follow."""
