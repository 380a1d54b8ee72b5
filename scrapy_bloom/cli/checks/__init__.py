"""The checks of `scrapy bloom doctor`: each module looks at one thing, and returns findings."""
