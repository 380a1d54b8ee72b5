"""The command `scrapy bloom`: a thin module for each action, which reads arguments and prints what `admin` finds."""
