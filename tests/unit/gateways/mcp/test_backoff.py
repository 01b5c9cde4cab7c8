"""When a server that keeps failing may be tried again."""

from __future__ import annotations

from chordage.orchestrator.gateways.mcp.link import LinkRules, Reconnect


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def waits(*lives):
    """After each failure of a connection that lived so long."""
    backoff, found = Reconnect(LinkRules(), Clock()), []
    for lived in lives:
        backoff.failed(lived)
        found.append(backoff.wait)
    return found


def test_the_first_failure_costs_no_time():
    assert waits(0.0) == [0.0]


def test_the_wait_doubles_up_to_a_limit():
    found = waits(*[0.0] * 9)

    for wait, most in zip(found[1:], [1, 2, 4, 8, 16, 30, 30, 30], strict=True):
        assert 0.75 * most <= wait <= most


def test_a_connection_that_held_makes_up_for_failures_before_it():
    found = waits(0.0, 0.0, 0.0, 31.0, 0.0)

    assert found[4] <= 1.0


def test_the_wait_passes():
    clock = Clock()
    backoff = Reconnect(LinkRules(), clock)
    backoff.failed()
    backoff.failed()
    clock.now += 1.0

    assert backoff.wait == 0.0


def test_failures_without_end_do_not_overflow():
    assert waits(*[0.0] * 2000)[-1] <= 30.0
