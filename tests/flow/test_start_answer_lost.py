"""A start goes out together with its commit: what the database says to it may get lost, and it may be undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chordage.orchestrator.core.errors import Crossed, Unavailable
from chordage.orchestrator.store.database import Tx
from support.fakes import rounds_of
from support.invariants import check_all
from support.world import World

pytestmark = pytest.mark.usefixtures("calls_anywhere")


def lose_the_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the next start: it is committed, and the answer to the commit is lost."""
    one_trip = world.store.one_trip

    @contextmanager
    def losing() -> Iterator[Tx]:
        monkeypatch.setattr(world.store, "one_trip", one_trip)
        with one_trip() as tx:
            yield tx
        raise Unavailable("the connection broke before the answer came")

    monkeypatch.setattr(world.store, "one_trip", losing)


def undo(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one_trip = world.store.one_trip

    @contextmanager
    def crossing() -> Iterator[Tx]:
        monkeypatch.setattr(world.store, "one_trip", one_trip)
        raise Crossed
        yield

    monkeypatch.setattr(world.store, "one_trip", crossing)


@pytest.mark.parametrize("go_wrong", [lose_the_answer, undo])
def test_start_whose_answer_was_lost_is_one_start(world: World, monkeypatch, go_wrong) -> None:
    world.models.script = rounds_of(2)
    go_wrong(world, monkeypatch)
    first, second = world.submit("one"), world.submit("two")

    with pytest.raises(Unavailable):
        world.run_dry()
    assert world.locks.threads == {}, "the worker that continues the run takes the thread, and so may another"
    world.recover()

    assert [world.row("turns", id=turn)["disposition"] for turn in (first, second)] == ["answered", "answered"]
    assert len(world.rows("runs")) == 2
    check_all(world.store)
