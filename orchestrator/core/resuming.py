"""The resume gate, as far as it is pure: which of a run's open calls may go on, and whether the run may."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from chordage.orchestrator.core.agent import MixedRound, ToolMode
from chordage.orchestrator.core.records import Call
from chordage.orchestrator.core.status import CallStatus


def due(open_calls: Sequence[Call], decided: Collection[str], mode: ToolMode) -> list[Call]:
    """The calls whose decision is there, and those that stood behind them; in the model's order."""
    waiting = [call for call in open_calls if call.status is CallStatus.SUSPENDED and call.id not in decided]
    if waiting and mode is ToolMode.PARALLEL_BATCH:
        return []
    held_up = _first_places(waiting)
    return [call for call in open_calls if _may_go_on(call, decided, mode, held_up)]


def _first_places(waiting: Sequence[Call]) -> dict[int, int]:
    """Where each round is held up."""
    places: dict[int, int] = {}
    for call in waiting:
        places[call.step] = min(places.get(call.step, call.place), call.place)
    return places


def _may_go_on(call: Call, decided: Collection[str], mode: ToolMode, held_up: dict[int, int]) -> bool:
    is_free = call.place < held_up.get(call.step, call.place + 1)
    match call.status:
        case CallStatus.SUSPENDED:
            return call.id in decided and (is_free or mode is not ToolMode.SEQUENTIAL)
        case CallStatus.NEW:
            return is_free and call.lease_until is None
        case _:
            return False


def must_wait(
    just_settled: Sequence[Call], still_open: Sequence[Call], mixed: MixedRound, *, has_kept_an_end: bool
) -> bool:
    """Whether the run waits for decisions now, rather than ask the model again with placeholders."""
    if not still_open:
        return False
    if has_kept_an_end or mixed is MixedRound.WAIT:
        return True
    open_ids = {call.id for call in still_open}
    return all(call.id in open_ids for call in just_settled)
