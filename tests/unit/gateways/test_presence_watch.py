"""Which processes count as gone, by what was seen of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from chordage.orchestrator.core.presence import Presence, Process
from chordage.orchestrator.gateways.presence_watch import PresenceWatch

START = datetime(2030, 1, 1, tzinfo=UTC)


class Fleet:
    """Processes on machines, and one that watches them from the machine "here"."""

    def __init__(self, **machines: str) -> None:
        self.machines = machines
        self.shown = dict.fromkeys(machines, 0)
        self.ended: set[str] = set()
        self.seconds = [0.0, 0.0]
        clocks = [lambda: self.seconds[0], lambda: self.seconds[1]]
        self.watch = PresenceWatch("here", lambda one: one.id not in self.ended, gone_after=7, of=clocks)

    def look(self, *living: str, after: float = 2.0, asleep: float = 0.0) -> list[str]:
        """`living` have shown their presence since the last look."""
        self.seconds = [self.seconds[0] + after, self.seconds[1] + after + asleep]
        for name in living:
            self.shown[name] += 1
        self.watch.begin_look()
        return [one.process.id for one in self.watch.gone([self._presence(name) for name in self.machines])]

    def _presence(self, name: str) -> Presence:
        process = Process(id=name, machine=self.machines[name], pid=1, born="then")
        return Presence(process=process, seen_at=START + timedelta(seconds=self.shown[name]))


def test_silent_machine_is_gone_after_a_while():
    fleet = Fleet(a="far", b="further")

    looks = [fleet.look("b") for _ in range(6)]

    assert looks == [[], [], [], [], ["a"], ["a"]]


def test_process_of_a_machine_that_is_heard_is_left_to_it():
    fleet = Fleet(a="far", b="far")

    assert [fleet.look("b") for _ in range(10)] == [[]] * 10


def test_process_that_is_no_more_on_this_machine_is_gone_at_once():
    fleet = Fleet(a="here", b="here")
    fleet.ended = {"a"}

    assert fleet.look("b") == ["a"]


def test_process_of_this_machine_that_is_stopped_is_not_gone():
    fleet = Fleet(a="here", b="here")

    assert [fleet.look("b") for _ in range(10)] == [[]] * 10


def test_clocks_of_others_are_not_compared_with_ours():
    fleet = Fleet(a="far")
    fleet.shown["a"] = -100_000

    assert [fleet.look("a") for _ in range(10)] == [[]] * 10


def test_watch_that_stood_still_begins_anew():
    """The database was away, or this process was stopped: the others could not show themselves, or were not seen."""
    fleet = Fleet(a="far")
    looks = [fleet.look() for _ in range(3)]

    looks.append(fleet.look(after=60))
    looks += [fleet.look() for _ in range(4)]

    assert looks == [[], [], [], [], [], [], [], ["a"]]


def test_watch_on_a_machine_that_slept_begins_anew():
    fleet = Fleet(a="far")
    looks = [fleet.look() for _ in range(3)]

    looks.append(fleet.look(asleep=60))
    looks += [fleet.look() for _ in range(4)]

    assert looks == [[], [], [], [], [], [], [], ["a"]]


def test_new_watch_waits_for_the_whole_span():
    fleet = Fleet(a="far")
    fleet.seconds = [10_000.0, 10_000.0]

    assert [fleet.look() for _ in range(5)] == [[], [], [], [], ["a"]]
