"""A tool round: which calls may run, how they are spread over the workers, and whether the round is settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

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
