"""The Scrapy project. Imports within it are relative: it is `crawler` to Scrapy, a subpackage to the demo."""
