"""A spider fed by Redis that overrides all that scrapy-redis's Scheduler calls."""

from tests.support.overrides import TheirSpider
from tests.support.spiders.overriding import Attributes


class OverridingSpider(Attributes, TheirSpider):  # type: ignore[misc]  # made by a function
    """Under scrapy-redis's Scheduler."""
