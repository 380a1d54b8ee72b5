"""Tools for whoever changes the code; no part of the package."""
