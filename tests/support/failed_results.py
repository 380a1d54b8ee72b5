"""The results of a round trip that has failed as a whole."""

from scrapy_bloom.storage.operation import Results
from scrapy_bloom.transport.transport import failed_round_trip


def failed(error: Exception, number: int) -> Results:
    """Return the results of `number` operations whose connection failed with an error."""
    failures = failed_round_trip(error, number)
    results = Results(failures)
    results.failures = dict(enumerate(failures))
    return results
