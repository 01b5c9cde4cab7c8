"""A message and the end of a run at the same moment, held by real locks: the second sees what the first did."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from chordage.orchestrator.core.agent import WhenBusy
from support.busy_thread import answer_with_user_texts, in_the_model_call, user_texts
from support.held_commit import HeldCommit
from support.invariants import check_all
from support.world import World

pytestmark = pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)


@pytest.mark.parametrize("when_busy", [WhenBusy.STEER, WhenBusy.INTERRUPT])
def test_a_message_that_is_being_stored_is_waited_for_by_the_end_of_the_run(world: World, when_busy: WhenBusy) -> None:
    world.models.script = answer_with_user_texts
    held = HeldCommit(world)

    def store() -> None:
        held.of_this_thread()
        world.submit("and this", when_busy=when_busy)

    with ThreadPoolExecutor(1) as pool:

        def write_meanwhile() -> None:
            pool.submit(store)
            assert held.reached.wait(120)

        in_the_model_call(world, write_meanwhile)
        world.submit("do it")
        for _ in range(2):
            world.deliver(world.pending.pop(0))
    world.run_dry()

    ends = ["answered", "steered"] if when_busy is WhenBusy.STEER else ["cancelled", "answered"]
    assert [turn["disposition"] for turn in world.rows("turns")] == ends
    assert user_texts(world.models.prompts[-1]) == ["do it", "and this"]
    check_all(world.store)


@pytest.mark.parametrize("when_busy", [WhenBusy.STEER, WhenBusy.INTERRUPT, WhenBusy.ROLLBACK])
def test_a_message_that_comes_while_the_run_ends_has_a_run_of_its_own(world: World, when_busy: WhenBusy) -> None:
    world.models.script = answer_with_user_texts
    held = HeldCommit(world)
    in_the_model_call(world, held.of_this_thread)
    world.submit("do it")
    world.deliver(world.pending.pop(0))
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(world.deliver, world.pending.pop(0))
        assert held.reached.wait(120)
        world.submit("and this", when_busy=when_busy)
        last.result()
    assert world.rows("turns")[1]["ready"] == 1
    world.run_dry()

    assert [turn["disposition"] for turn in world.rows("turns")] == ["answered", "answered"]
    assert len(world.rows("runs")) == 2
    check_all(world.store)
