"""The poll loop: a thread for each binding, and an end without a wait."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.loops import poll
from chordage.orchestrator.loops.poll import Poller
from support.waiting import until


def loop(names, look, **more):
    given = {"renew": lambda some: None, "release": lambda some: None, "beat": 0.01, **more}
    return Poller(names, poll=look, **given)


def test_one_that_raises_and_one_that_hangs_stop_no_other(monkeypatch):
    monkeypatch.setattr(poll.channels, "BACKOFF", SimpleNamespace(delay=lambda _failures, _chance: 3600.0))
    looks: list[str] = []
    hang = threading.Event()

    def look(name: str) -> float:
        looks.append(name)
        if name == "hangs":
            hang.wait(40)
        if name == "raises":
            raise Unavailable("the database is away")
        return 0.0

    poller = loop(["raises", "hangs", "works"], look)
    poller.start()
    until(lambda: looks.count("works") >= 5, "the one that works is looked at", pause=0.01)
    poller.stop(hang.set)

    assert looks.count("hangs") == 1
    assert looks.count("raises") == 1, "it rests"


def test_it_ends_though_a_look_does_not():
    hang, given_back = threading.Event(), []
    poller = loop(["hangs"], lambda name: float(hang.wait(40)), release=given_back.append)
    poller.start()

    began = time.monotonic()
    poller.stop(lambda: None)

    assert time.monotonic() - began < 20, "it does not wait for the forty seconds of the look"
    assert given_back == [["hangs"]]
    hang.set()


def test_it_waits_as_long_as_requested_and_the_end_wakes_it():
    looks: list[str] = []

    def look(name: str) -> float:
        looks.append(name)
        return 60.0

    poller = loop(["one"], look)
    poller.start()
    until(lambda: looks, "one look", pause=0.01)
    began = time.monotonic()
    poller.stop(lambda: None)

    assert looks == ["one"]
    assert time.monotonic() - began < 30, "it does not wait for the minute until the next look"


def test_leases_are_renewed_though_that_fails_now_and_then_and_not_for_a_look_that_hangs_for_good(monkeypatch):
    renewed: list[list[str]] = []
    hang = threading.Event()

    def renew(some: list[str]) -> None:
        renewed.append(some)
        if len(renewed) == 1:
            raise Unavailable("not now")

    def look(name: str) -> float:
        return float(hang.wait(40)) if name == "hangs" else 0.01

    poller = loop(["hangs", "works"], look, renew=renew)
    poller.start()
    until(lambda: len(renewed) >= 2, "the leases are renewed again", pause=0.01)
    monkeypatch.setattr(poll, "LONGEST_POLL", 0.5)
    until(lambda: ["works"] in renewed, "the one that hangs is given up", pause=0.01)
    poller.stop(hang.set)

    assert renewed[1] == ["hangs", "works"]
