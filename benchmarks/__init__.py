"""The measurements behind scrapy-bloom's promises: `python -m benchmarks --help`."""
