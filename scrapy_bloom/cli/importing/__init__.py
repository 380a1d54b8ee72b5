"""Import a SET or a file into a filter."""
