"""The work of `scrapy bloom`: looking into filters and queues, and moving them. It prints nothing."""
