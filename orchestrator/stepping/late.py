"""Results that came while a reply was held: who made it has not seen them, so it is not the answer yet.

A run of its own would have waited with its reply and asked again; whether somebody decides before or after the consumer
says `next` must make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chordage.orchestrator.core.reasons import NATURAL_END
from chordage.orchestrator.core.records import Answer, Checkpoint
from chordage.orchestrator.core.settling import Fate, Held, Route, Settled
from chordage.orchestrator.core.status import OPEN_CALL
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal
from chordage.orchestrator.store.stepped import SteppedRows


def unseen(seen: SteppedRows, held: Held, rule: Settled, answers: Sequence[Answer]) -> list[str]:
    """Calls of earlier rounds that were decided about since the reply, where the run would end with it."""
    if rule.route is not Route.END or rule.fate is not Fate.APPENDED or rule.ending != NATURAL_END or held.is_capped:
        return []
    assert seen.held is not None
    return [call.id for call in answers if _is_unseen(call, seen.held.run_id, seen.held.step)]


def _is_unseen(call: Answer, run_id: str, step: int) -> bool:
    is_of_before = call.run_id == run_id and call.step <= step
    return is_of_before and (call.replayed_at or 0) > step and call.status not in OPEN_CALL


def asked_again(rule: Settled) -> Settled:
    return replace(rule, route=Route.ASK, ending=None)


def row(rt: Runtime, seen: SteppedRows, call_ids: Sequence[str]) -> journal.Row:
    """It has waited for them, with its reply: so the next prompt says that there is news further up."""
    assert seen.held is not None
    held = seen.held
    body = {"calls": list(call_ids)}
    return journal.entry(held.thread_id, held.run_id, held.step, Checkpoint.RUN_WAITING, body, rt.now())
