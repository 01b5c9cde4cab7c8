"""The first letters of an id are enough, at a price that does not grow with what there is, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.gateways.ids import Ids
from chordage.orchestrator.views import IdKind
from support.world import World

TURN, OTHER, THREAD = (f"0191a2b3-{rest}" for rest in ("c4d5-7000", "c4d5-7fff", "cfff-7000"))


def with_ids(world: World, *ids: str) -> None:
    made = Ids()
    left = iter(ids)
    world.runtime = replace(world.runtime, new_id=lambda: next(left, None) or made())


def test_unique_prefix_names_the_id(world: World) -> None:
    with_ids(world, TURN, OTHER)
    for thread in (THREAD, "0191 another"):
        world.submit(thread=thread)

    found = [views.identify(world.store, given) for given in ("0191a2b3-c4d5-70", "0191a2b3-cf", "0191 a")]

    assert found == [(IdKind.TURN, TURN), (IdKind.THREAD, THREAD), (IdKind.THREAD, "0191 another")]
    assert views.full_id(world.store, IdKind.TURN, "0191a2b3-c4d5-7f") == OTHER
    assert views.full_id(world.store, IdKind.THREAD, "0191a2b3") == THREAD


def test_ambiguous_prefix_is_an_error_that_names_some_matches(world: World) -> None:
    with_ids(world, *(f"0191a2b3-{number}" for number in range(6)))
    for number in range(6):
        world.submit(thread=f"t{number}")

    told = "several ids begin with '0191', such as turn 0191a2b3-0, turn 0191a2b3-1, turn 0191a2b3-2; give more of it"
    with pytest.raises(Conflict, match=told):
        views.identify(world.store, "0191")
    with pytest.raises(Conflict, match=told):
        views.full_id(world.store, IdKind.TURN, "0191")


def test_turn_is_preferred_when_its_run_and_thread_match_too(world: World) -> None:
    with_ids(world, TURN)
    world.submit(thread=THREAD)
    with_ids(world, OTHER)
    world.run_dry()

    assert world.row("runs")["id"] == OTHER
    assert views.identify(world.store, "0191a2b3") == (IdKind.TURN, TURN)
    assert views.trace(world.store, "0191a2b3-c4d5-7f").turn.turn_id == TURN
    assert views.identify(world.store, "0191a2b3-c4d5-7f") == (IdKind.RUN, OTHER)


def test_unknown_and_too_short_prefixes_are_the_usual_error(world: World) -> None:
    with_ids(world, TURN)
    world.submit(thread="t")

    for given in ("019", "0191a2b4", "zzzz"):
        with pytest.raises(NotFound, match="there is no turn, run or thread"):
            views.identify(world.store, given)
        assert views.full_id(world.store, IdKind.TURN, given) == given


def test_look_up_costs_the_same_however_many_ids_there_are(world: World) -> None:
    with_ids(world, TURN)
    world.submit(thread="t")

    def cost() -> int:
        before = world.statements
        assert views.full_id(world.store, IdKind.TURN, "0191a2b3") == TURN
        return world.statements - before

    one = cost()
    for number in range(40):
        world.submit(thread=f"t{number}")
    assert cost() == one
