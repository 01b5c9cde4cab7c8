"""A tool round: the ids of its calls, how they are spread over workers, and which may run after a decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from chordage.orchestrator.core.agent import MixedRound, ToolMode
from chordage.orchestrator.core.model import ToolAsk
from chordage.orchestrator.core.records import Answer, Call
from chordage.orchestrator.core.status import CallStatus


def spread(call_ids: Sequence[str], at_once: int | None) -> tuple[tuple[str, ...], ...]:
    """The calls in as many batches as may run at the same time."""
    width = min(at_once or len(call_ids), len(call_ids))
    return tuple(tuple(call_ids[start::width]) for start in range(width))


def distinct(asks: Sequence[ToolAsk], step: int) -> tuple[ToolAsk, ...]:
    """The same asks with unique ids: some providers send none, or one id twice."""
    sent = {ask.id for ask in asks}
    used: set[str] = set()
    named: list[ToolAsk] = []
    for place, ask in enumerate(asks):
        unique = ask.id if ask.id and ask.id not in used else f"{ask.id[:180] or 'call'}_{step}_{place}"
        while unique in used or (unique != ask.id and unique in sent):
            unique += "_"
        used.add(unique)
        named.append(ask if unique == ask.id else replace(ask, id=unique))
    return tuple(named)


def generations(run_id: str, known: Iterable[Answer | Call]) -> Counter[str]:
    """How often each provider id was used in this run: a further use is a new generation."""
    return Counter(call.ask_id for call in known if call.run_id == run_id)


def due(open_calls: Sequence[Call], decided: Collection[str], mode: ToolMode) -> list[Call]:
    """The open calls that may run now, in the model's order: those with a decision, and those that were behind them."""
    waiting = [call for call in open_calls if call.status is CallStatus.SUSPENDED and call.id not in decided]
    if waiting and mode is ToolMode.PARALLEL_BATCH:
        return []
    first_waiting: dict[int, int] = {}  # by step, the first place of a call that waits
    for call in waiting:
        first_waiting[call.step] = min(first_waiting.get(call.step, call.place), call.place)

    def may_run(call: Call) -> bool:
        is_before = call.place < first_waiting.get(call.step, call.place + 1)
        match call.status:
            case CallStatus.SUSPENDED:
                return call.id in decided and (is_before or mode is not ToolMode.SEQUENTIAL)
            case CallStatus.NEW:
                return is_before and call.lease_until is None
            case _:
                return False

    return [call for call in open_calls if may_run(call)]


def must_wait(
    just_settled: Sequence[Answer | Call], still_open: Sequence[Call], mixed: MixedRound, *, has_kept_an_end: bool
) -> bool:
    """Whether the run waits for decisions now, instead of asking the model again with placeholders."""
    if not still_open:
        return False
    if has_kept_an_end or mixed is MixedRound.WAIT:
        return True
    open_ids = {call.id for call in still_open}
    return all(call.id in open_ids for call in just_settled)
