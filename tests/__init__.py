"""The tests; servers that they need they start themselves (see `servers`)."""
