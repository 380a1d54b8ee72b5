"""The parts of the benchmarks: each has a `run`, and its docstring heads its results."""
