"""The parts of the benchmarks: each has a `run`, and its docstring is what is printed above its results."""
