"""A process that could not renew its own leases for a while judges none of others."""

from __future__ import annotations

import pytest

from chordage.orchestrator.gateways.steadiness import Steadiness, clocks


class Machine:
    """Clocks of a machine: one stops with it, one continues, and the one on the wall may be put forward."""

    def __init__(self):
        self.at = [100.0, 5000.0, 200.0]

    def clocks(self):
        return [lambda n=n: self.at[n] for n in range(3)]

    def passes(self, seconds, *which):
        for n in which or range(3):
            self.at[n] += seconds


def beating(machine, seconds, steadiness):
    for _ in range(seconds):
        machine.passes(1)
        steadiness.answered()


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def steadiness(machine):
    made = Steadiness(gap=10, enough=5, of=machine.clocks())
    made.answered()
    return made


def test_process_that_has_just_begun_judges_no_lease(machine):
    steadiness = Steadiness(gap=10, enough=5, of=machine.clocks())
    assert not steadiness.holds()
    beating(machine, 5, steadiness)
    assert not steadiness.holds()
    beating(machine, 1, steadiness)
    assert steadiness.holds()


@pytest.mark.parametrize("which", [(0, 1, 2), (1, 2), (1,), (2,)])
def test_after_a_gap_on_any_clock_everybody_has_a_beat_to_renew(machine, steadiness, which):
    beating(machine, 20, steadiness)
    assert steadiness.holds()

    machine.passes(40, *which)
    assert not steadiness.holds(), "before the heartbeat has noticed it as well"
    steadiness.answered()
    assert not steadiness.holds()
    beating(machine, 4, steadiness)
    assert not steadiness.holds()
    beating(machine, 1, steadiness)
    assert steadiness.holds()


def test_a_short_silence_is_no_gap(machine, steadiness):
    beating(machine, 20, steadiness)
    machine.passes(9)
    assert steadiness.holds()
    assert steadiness.is_due()
    steadiness.answered()
    assert steadiness.holds()
    assert not steadiness.is_due()


def test_clocks_of_this_machine_advance():
    before = [clock() for clock in clocks()]
    assert len(before) >= 2
    assert all(clock() >= earlier for clock, earlier in zip(clocks(), before, strict=True))
