"""The spiders, numbered: each adds one idea to the one before."""
