"""The outcome of a promised error rate: by the answers of a filter, and by its bits."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.confidence import wilson

# A sample of 64 KB estimates the error rate of 20 hashes within 2 % (one standard deviation).
SAMPLE_ALLOWANCE = 1.05


@dataclass(frozen=True)
class Outcome:
    """A filled filter's answers on `asked` items that were never added, and estimates from its bits.

    `first_layer` is the ratio of its items to its capacity, `fullest_layer` the largest ratio of a layer's error rate
    to its share, and `by_bits` the error rate of all layers. For several filters these are means.
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
        """The ratio of the measured error rate to the promised one."""
        return self.wrong / self.asked / self.error_rate

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the ratio."""
        low, high = wilson(self.wrong, self.asked)
        return low / self.error_rate, high / self.error_rate

    @property
    def is_kept(self) -> bool:
        """Whether neither the answers nor the bits show an error rate above the promise."""
        return self.interval[0] <= 1 and self.by_bits <= self.error_rate * SAMPLE_ALLOWANCE


def total(each: Sequence[Outcome]) -> Outcome:
    """Combine the outcomes of equal filters: sum their answers, average their estimates."""
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
