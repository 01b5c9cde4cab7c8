"""A world tells of a stage that asks for a second connection while it has one."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.store import turns
from support.world import World


def test_stage_that_opens_a_second_transaction_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    load = turns.load

    def greedy(tx, turn_id):
        stages.cancel_turn(world.runtime, "another", None)
        return load(tx, turn_id)

    turn = world.submit()
    monkeypatch.setattr(turns, "load", greedy)
    with pytest.raises(AssertionError, match=r"chordage.orchestrator.\S+ asks for a second connection"):
        stages.cancel_turn(world.runtime, turn, None)


def test_what_the_test_itself_holds_does_not_count(world: World) -> None:
    with world.store.read():
        world.submit()
        with world.store.read():
            world.run_dry()

    assert world.row("turns")["disposition"] == "answered"
