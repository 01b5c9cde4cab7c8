"""What the tokens of a model cost: prices with the day from which they count, and the exact cost of a reply.

A cost is a whole number of nano-dollars, so that sums are exact. It is computed once, when a reply is recorded, by the
price of that day; a price that is changed later changes nothing that was recorded. A reply without a price is counted
as one of unknown cost: that is never the same as a cost of 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.text import counted

NANOS = 10**9  # of a dollar
MOST = 1_000_000  # dollars for a million tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """Dollars for a million tokens. `since`: the first day, in UTC, on which it counts; None: it always has."""

    input: Fraction
    output: Fraction
    cached: Fraction | None = None  # of the input, read from the provider's cache; None: as other input
    cache_write: Fraction | None = None  # of the input, written to it; None: as other input
    since: date | None = None

    def cost(self, usage: Usage) -> int:
        """In nano-dollars, rounded to the nearest. What was read from a cache or written to it is part of the input."""
        fresh = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        dollars = (
            fresh * self.input
            + usage.cached_tokens * cached
            + usage.cache_write_tokens * written
            + usage.output_tokens * self.output
        ) / 1_000_000
        return int(dollars * NANOS + Fraction(1, 2))


PriceList = Mapping[str, Sequence[Price]]  # by the full name of a model, the oldest price first


class UsageKey(StrEnum):
    """What a line of a report of usage is about."""

    AGENT = "agent"
    TENANT = "tenant"
    DAY = "day"


def exact(dollars: float | str) -> Fraction:
    """A number as it was written: 0.1 is a tenth."""
    return Fraction(str(dollars))


def price_of(prices: PriceList, model: str, day: date) -> Price | None:
    """The price that counts on that day; None: it is not known."""
    dated = [price for price in prices.get(model, ()) if price.since is None or price.since <= day]
    return dated[-1] if dated else None


def cost_of(usage: Usage, prices: PriceList, model: str, day: date) -> int | None:
    """In nano-dollars; None: there is no price."""
    price = price_of(prices, model, day)
    return None if price is None else price.cost(usage)


def cost_text(usage: Usage) -> str:
    """`$0.0123`, `cost unknown`, or `at least $0.12, 2 replies without a price`."""
    if usage.cost_nanos is None:
        return "cost unknown"
    if not usage.unpriced:
        return dollars_text(usage.cost_nanos)
    replies = counted(usage.unpriced, "reply", "replies")
    return f"at least {dollars_text(usage.cost_nanos)}, {replies} without a price"


def dollars_text(nanos: int) -> str:
    """As short as it can be read: $12.34, $0.123, $0.00012. Less than half of the last place that is shown is cut."""
    amount = Decimal(nanos).scaleb(-9)
    places = 2 if amount >= 1 or not amount else min(9, 2 - amount.adjusted())
    digits = f"{amount:.{places}f}"
    whole, _, fraction = digits.partition(".")
    return f"${whole}.{fraction.rstrip('0').ljust(2, '0')}"
