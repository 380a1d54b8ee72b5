"""The command `scrapy bloom`: one module per action, and next to it the work of the action."""
