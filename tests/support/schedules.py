"""Schedules that Hypothesis chooses: what may happen in any of them, and how one is carried out on a fresh world.

A move is the name of a method of `Play`, or of what is made of it, and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store.database import Store
from support.invariants import check_all, check_always, check_places_are_handed_on
from support.play import BUDGETS, NAMED, Play
from support.world import World

Move = tuple[Any, ...]

LONG = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

place = st.integers(0, 1_000)
ALWAYS = (
    st.tuples(st.just("deliver"), place),
    st.tuples(st.just("deliver"), place),
    st.tuples(st.just("deliver"), place),
    st.tuples(st.just("double"), place),
    st.tuples(st.just("drop"), place),
    st.tuples(st.just("die"), place, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("die_in_tool"), place),
    st.tuples(st.just("linger"), place, st.sampled_from([31, 120])),
    st.tuples(st.just("sweep"), st.sampled_from([1, 31, 120]), st.booleans()),
    st.tuples(st.just("wipe")),
    st.tuples(st.just("cancel"), place),
)

LOSES = {"drop", "die", "die_in_tool", "edit"}  # a wake-up, that is


def schedules_of(*more: st.SearchStrategy[Move], min_size: int) -> st.SearchStrategy[list[Move]]:
    """Of what always may happen and of these; what is made and named several times is the likelier."""
    return st.lists(st.one_of(*ALWAYS, *more), min_size=min_size, max_size=60)


@contextmanager
def fresh_world(database_url: str) -> Iterator[World]:
    world = World(Store(database_url, pool_size=1))
    try:
        yield world
    finally:
        world.close()


def carry_out(
    game: Play,
    schedule: Sequence[Move],
    also: Callable[[World], None] = lambda _world: None,
    *,
    before_recovery: Callable[[World], None] = lambda _world: None,
) -> None:
    """From a first turn on, until everything has come to its end; what must always hold is looked at on the way, and
    with it what a test alone looks at.
    """
    world = game.world
    world.budgets.update(BUDGETS)
    game.submit("a", Group.CHAT)
    nothing_was_lost = True
    for name, *arguments in schedule:
        getattr(game, name)(*arguments)
        check_always(world.store, NAMED)
        also(world)
        nothing_was_lost &= name not in LOSES
        if nothing_was_lost:
            check_places_are_handed_on(world.store, NAMED, world.wake_ups())
    game.edit(broken=False)
    before_recovery(world)
    world.recover(limit=300)
    check_all(world.store)
