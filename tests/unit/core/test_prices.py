"""What tokens cost, and how a cost is written."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.model import COUNTS, Usage, usage_from
from chordage.orchestrator.core.prices import Price, cost_of, cost_text, dollars_text, exact

MINI = Price(input=exact(0.15), output=exact(0.6), cached=exact(0.075), cache_write=exact(0.1875))
tokens = st.integers(0, 10_000)


def test_each_kind_of_token_has_its_price():
    used = Usage(input_tokens=1_000_000, cached_tokens=200_000, cache_write_tokens=100_000, output_tokens=500_000)

    assert MINI.cost(used) == (700_000 * 150) + (200_000 * 75) + int(100_000 * 187.5) + (500_000 * 600)


def test_cached_input_without_a_price_costs_as_other_input():
    plain = Price(input=exact(2), output=exact(0))

    assert plain.cost(Usage(input_tokens=10, cached_tokens=4, cache_write_tokens=3)) == 10 * 2000


def test_a_tenth_is_a_tenth():
    assert Price(input=exact(0.1), output=exact(0)).cost(Usage(input_tokens=30_000_000)) == 3_000_000_000


def test_the_nearest_nano_dollar_is_recorded():
    price = Price(input=exact(0.0005), output=exact(0))

    assert [price.cost(Usage(input_tokens=count)) for count in (0, 1, 2, 3)] == [0, 1, 1, 2]


def test_cached_tokens_beyond_the_input_make_nothing_cheaper():
    assert MINI.cost(Usage(input_tokens=1, cached_tokens=5)) == 375


@pytest.mark.parametrize(
    ("day", "cost"), [(date(2026, 1, 31), 1000), (date(2026, 2, 1), 2000), (date(2026, 6, 1), 3000)]
)
def test_the_price_of_the_day_counts(day, cost):
    since = (None, date(2026, 2, 1), date(2026, 6, 1))
    prices = {"m": tuple(Price(input=exact(n), output=exact(0), since=at) for n, at in enumerate(since, 1))}

    assert cost_of(Usage(input_tokens=1), prices, "m", day) == cost


def test_before_its_first_day_a_price_is_unknown():
    prices = {"m": (Price(input=exact(1), output=exact(1), since=date(2026, 2, 1)),)}

    assert cost_of(Usage(input_tokens=1), prices, "m", date(2026, 1, 31)) is None
    assert cost_of(Usage(input_tokens=1), prices, "other", date(2026, 2, 1)) is None


@given(tokens, tokens, tokens, tokens)
def test_cost_never_falls_with_more_tokens(fresh, cached, written, output):
    used = Usage(
        input_tokens=fresh + cached + written, cached_tokens=cached, cache_write_tokens=written, output_tokens=output
    )

    assert 0 <= MINI.cost(used) <= MINI.cost(used + Usage(input_tokens=1, output_tokens=1))


COST = st.builds(
    lambda known, unpriced: Usage(cost_nanos=None if unpriced and not known else known, unpriced=unpriced),
    st.integers(0, 100), st.integers(0, 3),
)  # fmt: skip


@given(st.lists(COST, max_size=6))
def test_a_sum_is_unknown_only_where_nothing_of_it_is_known(parts):
    total = sum(parts, Usage())

    assert total.unpriced == sum(part.unpriced for part in parts)
    assert (total.cost_nanos or 0) == sum(part.cost_nanos or 0 for part in parts)
    assert (total.cost_nanos is None) == (total.unpriced > 0 and not any(part.cost_nanos for part in parts))
    assert total == usage_from({name: getattr(total, name) or 0 for name in COUNTS})
    assert all(total - part + part == total for part in parts)


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (Usage(), "$0.00"),
        (Usage(cost_nanos=None, unpriced=1), "cost unknown"),
        (Usage(cost_nanos=120_000_000, unpriced=2), "at least $0.12, 2 replies without a price"),
        (Usage(cost_nanos=120_000_000, unpriced=1), "at least $0.12, 1 reply without a price"),
        (Usage(cost_nanos=12_300_000), "$0.0123"),
    ],
)
def test_a_cost_in_words(usage, text):
    assert cost_text(usage) == text


@pytest.mark.parametrize(
    ("nanos", "text"),
    [(1, "$0.000000001"), (150, "$0.00000015"), (1_234_567, "$0.00123"), (99_999_999, "$0.10"), (500_000_000, "$0.50"),
     (1_234_567_890, "$1.23"), (10**13, "$10000.00")],
)  # fmt: skip
def test_dollars_are_as_short_as_they_can_be_read(nanos, text):
    assert dollars_text(nanos) == text
