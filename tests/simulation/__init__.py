"""Whole crawls on a virtual clock: the real worker, and a server, a network and an engine that a seed decides."""
