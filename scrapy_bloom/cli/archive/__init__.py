"""A filter in a file: writing it, reading it, and making a filter of it."""
