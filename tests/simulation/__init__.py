"""Whole crawls on a virtual clock: the real worker, with a server, a network and an engine drawn by a seed."""
