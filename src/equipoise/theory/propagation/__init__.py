"""Signal propagation through the operations of a traced network."""
