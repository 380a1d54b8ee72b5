"""Tests of the command `scrapy bloom`."""
