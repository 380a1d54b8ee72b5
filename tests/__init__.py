"""The tests; they start the servers that they need (see `support.servers`)."""
