"""Several small models trained as one."""
