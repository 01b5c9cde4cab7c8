"""Where the calls of a world run: drawn, with tools that are short at times and overstay at times."""

from __future__ import annotations

from itertools import cycle

from hypothesis import strategies as st

from chordage.orchestrator.core.agent import Effect, Placement
from support.world import World

placements = st.sampled_from(list(Placement))
effects = st.sampled_from(["pure", "idempotent", "unsafe"])
SHORT, LONG = 0.0005, 0.02  # seconds; one that is long costs its tool the place for some calls


def place_calls(world: World, placement: Placement) -> None:
    """Of the calls that stay where their run is, every third one overstays.

    By `auto`, pure calls stay at first, idempotent ones when they have been measured, until one takes longer.
    """
    overstays, seconds = cycle([False, False, True]), cycle([SHORT, SHORT, SHORT, LONG])
    world.tools.placement = placement
    world.tools.overstays = lambda _order: next(overstays)
    world.tools.takes = lambda _order: next(seconds)
    for name in world.agents.names():
        world.runtime.durations.note(name, Effect.PURE.value, SHORT)
