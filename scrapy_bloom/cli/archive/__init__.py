"""Filters in files: export, file format, restore."""
