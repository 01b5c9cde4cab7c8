"""A tool round: which calls may run, how they are spread over the workers, and whether the round is settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from chordage.orchestrator.core.agent import MixedRound, ToolMode
from chordage.orchestrator.core.model import ToolAsk
from chordage.orchestrator.core.records import Answer, Call
from chordage.orchestrator.core.status import IN_FLIGHT_CALL, CallStatus


def is_settled(statuses: Iterable[CallStatus]) -> bool:
    """Nothing in flight any more. A suspended call does not keep a round open: it waits for a person."""
    return not any(status in IN_FLIGHT_CALL for status in statuses)


def spread(call_ids: Sequence[str], at_once: int | None) -> tuple[tuple[str, ...], ...]:
    """The calls in as many batches as may run at once."""
    width = min(at_once or len(call_ids), len(call_ids))
    return tuple(tuple(call_ids[start::width]) for start in range(width))


def distinct(asks: Sequence[ToolAsk], step: int) -> tuple[ToolAsk, ...]:
    """The same asks with ids of their own: some providers send none, or one id twice."""
    sent = {ask.id for ask in asks}
    seen: set[str] = set()
    named: list[ToolAsk] = []
    for place, ask in enumerate(asks):
        unique = ask.id if ask.id and ask.id not in seen else f"{ask.id[:180] or 'call'}_{step}_{place}"
        while unique in seen or (unique != ask.id and unique in sent):
            unique += "_"
        seen.add(unique)
        named.append(ask if unique == ask.id else replace(ask, id=unique))
    return tuple(named)


def generations(run_id: str, known: Iterable[Answer | Call]) -> Counter[str]:
    """How many lives each provider id has had in this run: an id that is used again starts a new one."""
    return Counter(call.ask_id for call in known if call.run_id == run_id)


# The resume gate, as far as it is pure: which of a run's open calls may go on, and whether the run may.


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
    just_settled: Sequence[Answer | Call], still_open: Sequence[Call], mixed: MixedRound, *, has_kept_an_end: bool
) -> bool:
    """Whether the run waits for decisions now, rather than ask the model again with placeholders."""
    if not still_open:
        return False
    if has_kept_an_end or mixed is MixedRound.WAIT:
        return True
    open_ids = {call.id for call in still_open}
    return all(call.id in open_ids for call in just_settled)
