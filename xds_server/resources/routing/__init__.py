"""RDS: which requests go where, and the weights of that."""
