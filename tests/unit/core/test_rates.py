"""Token buckets as values, and in the memory of a process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.rates import Allowance, Bucket, Rate, filled, headers_of
from chordage.orchestrator.gateways import rate_limits
from chordage.orchestrator.gateways.rate_limits import Limited, MemoryBuckets

SLOW = Rate(per_second=2, burst=4)


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def of_key(name: str = "k", rate: Rate = SLOW) -> Limited:
    return Limited(policy="key", of=name, rate=rate)


def test_a_bucket_that_was_never_used_is_full_and_fills_at_its_rate():
    assert filled(None, SLOW, 0) == 4
    assert filled(Bucket(tokens=0, at=10), SLOW, 10.5) == 1
    assert filled(Bucket(tokens=0, at=10), SLOW, 100) == 4
    assert filled(Bucket(tokens=1, at=10), SLOW, 9) == 1, "a clock that goes back takes nothing away"


def test_a_burst_is_let_through_and_then_the_rate():
    clock = FakeClock()
    buckets = MemoryBuckets(clock)

    first = [buckets.take([of_key()])[0] for _ in range(5)]
    clock.now += 0.5
    then = [buckets.take([of_key()])[0].taken for _ in range(2)]

    assert [one.taken for one in first] == [True] * 4 + [False]
    assert first[-1].wait == 0.5
    assert then == [True, False]


@given(st.lists(st.floats(min_value=0, max_value=3), max_size=80))
def test_no_more_pass_than_the_burst_and_the_rate_allow(pauses):
    clock = FakeClock()
    buckets = MemoryBuckets(clock)
    passed = 0
    for pause in pauses:
        clock.now += pause
        passed += buckets.take([of_key()])[0].taken

    assert passed <= SLOW.burst + SLOW.per_second * (clock.now - 1000) + 1e-6


def test_a_request_takes_a_token_from_each_bucket_or_from_none():
    buckets = MemoryBuckets(FakeClock())
    tenant = Limited(policy="tenant", of="acme", rate=Rate(per_second=1, burst=1))

    first = buckets.take([of_key(), tenant])
    second = buckets.take([of_key(), tenant])
    (alone,) = buckets.take([of_key()])

    assert [one.taken for one in (*first, *second)] == [True, True, False, False]
    assert alone.tokens == 2, "the request that the tenant refused cost the key nothing"


def test_keys_do_not_share_a_bucket():
    buckets = MemoryBuckets(FakeClock())
    few = Rate(per_second=1, burst=1)

    assert buckets.take([of_key("a", few)])[0].taken
    assert buckets.take([of_key("b", few)])[0].taken
    assert not buckets.take([of_key("a", few)])[0].taken


def test_memory_keeps_a_bounded_number_of_buckets(monkeypatch):
    monkeypatch.setattr(rate_limits, "KEPT", 3)
    buckets = MemoryBuckets(FakeClock())

    for number in range(10):
        buckets.take([of_key(str(number))])

    assert len(buckets._buckets) == 3


def test_headers_say_the_policy_and_what_is_left():
    allowance = Allowance(policy="key", rate=Rate(per_second=50, burst=200), tokens=150.4, taken=True)

    assert headers_of([allowance]) == {"RateLimit-Policy": '"key";q=200;w=4', "RateLimit": '"key";r=150;t=1'}
    assert headers_of([]) == {}
