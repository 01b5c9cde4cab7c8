"""A world tells of a stage that asks for a second connection while it has one."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages
from support.world import World


def test_a_stage_that_opens_a_second_transaction_is_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(runtime, group, hint):
        with runtime.store.read(), runtime.store.read():
            return []

    world.submit()
    monkeypatch.setattr(stages, "dispatch", greedy)
    with pytest.raises(AssertionError, match="asks for a second connection"):
        world.run_dry()


def test_what_the_test_itself_holds_does_not_count(world: World) -> None:
    with world.store.read():
        world.submit()
        with world.store.read():
            world.run_dry()

    assert world.row("turns")["disposition"] == "answered"
