"""Differences between filters, in the words of the settings."""

from dataclasses import asdict

from scrapy_bloom.filter.parameters import FilterParameters

# What decides on the name of the fingerprints.
_NAMES = {"fingerprint": "the fingerprints (REQUEST_FINGERPRINTER_CLASS)"}


def setting_differences(wanted: FilterParameters, there: FilterParameters, where: str) -> list[str]:
    """Return how wanted parameters differ from those of a filter, which is `where`; workers would be refused."""
    theirs = asdict(there)
    return [
        f"{_NAMES.get(name, f'BLOOMFILTER_{name.upper()}')} = {_shown(mine)} here, {_shown(theirs[name])} {where}"
        for name, mine in asdict(wanted).items()
        if theirs[name] != mine
    ]


def _shown(value: object) -> str:
    # BLOOMFILTER_TTL = 0 is for ever.
    return repr(0 if value is None else value)
