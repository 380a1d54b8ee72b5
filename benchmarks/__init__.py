"""The measurements behind what scrapy-bloom promises: `python -m benchmarks --help`."""
