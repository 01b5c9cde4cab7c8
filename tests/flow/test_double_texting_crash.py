"""The process dies at any commit of a run into which a message comes, and the message is never lost and never twice."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.agent import WhenBusy
from support.busy_thread import a_round_then_user_texts, in_the_first_call, in_the_model_call
from support.invariants import check_all
from support.world import Died, World

pytestmark = pytest.mark.usefixtures("calls_anywhere")

COMMITS = 9
BUSY = [WhenBusy.STEER, WhenBusy.INTERRUPT, WhenBusy.ROLLBACK]


def die(world: World, at: int, *, before: bool) -> None:
    """Run until that commit and lose everything that is not in the database; the sender knows, and asks again."""
    world.die_at, world.die_before = world.commits + at, before
    try:
        world.run_dry()
    except Died:
        world.pending.clear()
        world.forget_the_dead()
    world.die_at = None


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
@pytest.mark.parametrize("moment", ["tool", "model", "last reply"])
@pytest.mark.parametrize("when_busy", BUSY)
def test_a_message_into_a_run_survives_death_at_any_commit(world: World, when_busy, moment, at, before) -> None:
    world.models.script = a_round_then_user_texts

    def write() -> None:
        world.submit("and this", when_busy=when_busy, dedupe_key="k")

    if moment == "tool":
        in_the_first_call(world, write)
    else:
        in_the_model_call(world, write, number=1 if moment == "model" else 2)
    world.submit("do it")
    die(world, at, before=before)
    world.recover()
    write()
    world.recover()

    first, second = world.rows("turns")
    assert (first["disposition"], second["disposition"]) in {
        ("answered", "steered"),
        ("cancelled", "answered"),
        ("answered", "answered"),  # the sender died before it was stored, and asked again afterwards
    }
    assert max(world.tools.finished.values(), default=0) <= 2
    replies = [row["body"]["text"] for row in world.rows("journal", kind="AssistantTurnCommitted")]
    assert "and this" in replies[-1]
    check_all(world.store)
