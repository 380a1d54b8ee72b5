"""Tools of tests, benchmarks and the demo; not a part of the package."""
