"""The means of measuring: turns, intervals, plots, tables."""
