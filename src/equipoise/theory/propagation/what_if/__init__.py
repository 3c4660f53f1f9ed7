"""Edit a traced graph as if the model had been another one."""
