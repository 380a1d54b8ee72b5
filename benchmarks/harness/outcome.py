"""The outcome of a promised error rate: by the answers of a filter, and by its bits."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.confidence import wilson

# A sample of 64 KB tells the error rate of 20 hashes within 2 % (one standard deviation).
SAMPLE_ALLOWANCE = 1.05


@dataclass(frozen=True)
class Outcome:
    """A filled filter's answers on `asked` items that were never added, and what its bits say; means of several.

    `first_layer` is its items over its capacity, `fullest_layer` the largest of the layers' error rates over what each
    may have, and `by_bits` the error rate of all together.
    """

    error_rate: float
    wrong: int
    asked: int
    layers: float
    first_layer: float
    fullest_layer: float
    by_bits: float

    @property
    def ratio(self) -> float:
        """The measured error rate over the promised one."""
        return self.wrong / self.asked / self.error_rate

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the ratio."""
        low, high = wilson(self.wrong, self.asked)
        return low / self.error_rate, high / self.error_rate

    @property
    def is_kept(self) -> bool:
        """True if neither the answers nor the bits say that the error rate is above the promised one."""
        return self.interval[0] <= 1 and self.by_bits <= self.error_rate * SAMPLE_ALLOWANCE


def total(each: Sequence[Outcome]) -> Outcome:
    """The outcome of several equal filters: their answers together, and the means of what their bits say."""
    number = len(each)
    return Outcome(
        each[0].error_rate,
        sum(one.wrong for one in each),
        sum(one.asked for one in each),
        sum(one.layers for one in each) / number,
        sum(one.first_layer for one in each) / number,
        sum(one.fullest_layer for one in each) / number,
        sum(one.by_bits for one in each) / number,
    )
