"""The tools of the benchmarks: turns, intervals, plots, tables."""
