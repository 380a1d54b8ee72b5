"""How it is measured: turns, intervals, plots, tables."""
