"""The import of a SET, or of a file, into a filter."""
