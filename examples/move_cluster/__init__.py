"""A move from one cluster to another while orders come in, and a check that each order was billed once."""
