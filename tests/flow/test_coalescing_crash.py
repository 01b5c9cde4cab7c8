"""The process dies at any commit of a message that takes the place of another: each is stored whole, or not at all."""

from __future__ import annotations

from collections import Counter

import pytest

from chordage.orchestrator.core.message import Origin, Sender
from support.fakes import spoken
from support.invariants import check_all
from support.world import Died, World

CHORE = {"origin": Origin.CHORE, "sender": Sender.SELF, "thread": "chore:backup"}
WILL = {"origin": Origin.WILL, "sender": Sender.SELF, "thread": None}
ELSEWHERE = {"coalesce_key": "k", "thread": "a"}
HERE = {"coalesce_key": "k", "thread": "b"}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize(
    ("one", "other"), [(CHORE, CHORE), (WILL, WILL), (ELSEWHERE, HERE)], ids=["chore", "will", "key"]
)
def test_a_death_at_any_commit_leaves_every_message_with_one_end(
    world: World, one: dict, other: dict, number: int, before: bool
) -> None:
    world.models.script = lambda prompt: spoken("ok")
    world.die_at, world.die_before = number, before

    def until_stored(key: str, **own: object) -> None:
        """As its sender does: again, until it is known that it was stored."""
        try:
            world.submit(dedupe_key=key, **own)
        except Died:
            world.revive()
            world.pending.clear()  # it had sent no intent
            world.submit(dedupe_key=key, **own)

    until_stored("1", **one)
    until_stored("2", **other)
    until_stored("3", **one)
    try:
        world.run_dry()
    except Died:
        world.revive()
        world.pending.clear()
    world.recover()

    ends = Counter(turn["disposition"] for turn in world.rows("turns"))
    assert ends == {"answered": 1, "merged": 2}
    check_all(world.store)
