"""Where a stepped turn stands, from its rows."""

from __future__ import annotations

from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Phase, Run, Turn
from chordage.orchestrator.core.status import RunStatus, TurnStatus
from chordage.orchestrator.core.stepping import ALLOWED, Standing, Stepped, Verb


def standing_of(turn: Turn, run: Run | None, row: Stepped) -> Standing:
    if turn.status is TurnStatus.DONE:
        return Standing.DONE
    if run is None:
        return Standing.QUEUED
    match run.status:
        case RunStatus.DONE:
            return Standing.DONE
        case RunStatus.RUNNING if _is_starting(run, row):
            return Standing.QUEUED
        case RunStatus.RUNNING:
            is_out = run.phase is not Phase.INFERENCE and (run.in_flight or not row.going)
            return Standing.TOOLING if is_out and run.phase is not Phase.HELD else Standing.REQUESTING
        case RunStatus.WAITING:
            return _held(run, row) if run.reason is Reason.HELD else Standing.WAITING


def _is_starting(run: Run, row: Stepped) -> bool:
    """Opened a moment ago, and on its way to be held for the first time."""
    return run.phase is Phase.INFERENCE and not row.going and row.sent_hash is None and row.error is None


def holds_round(run: Run, row: Stepped) -> bool:
    """What came of a plan lies with the consumer. Nowhere else a run is held behind calls that are no reply's."""
    is_held = run.status is RunStatus.WAITING and run.reason is Reason.HELD and row.error is None
    return is_held and row.reply_step is None and run.phase in {Phase.TOOL_ROUND, Phase.REPLAY}


def _held(run: Run, row: Stepped) -> Standing:
    if row.parked:
        return Standing.PARKED
    if row.error is not None:
        return Standing.FAILED
    return Standing.HELD if row.reply_step is not None or holds_round(run, row) else Standing.READY


def check_allowed(verb: Verb, standing: Standing, rev: int) -> None:
    if standing in ALLOWED[verb]:
        return
    where = ", ".join(one.value for one in Standing if one in ALLOWED[verb])
    told = f"{verb.value} can be asked for while a turn is {where}; this one is {standing.value} (rev {rev})"
    raise StepRefused(told, code="not_allowed", rev=rev, standing=standing.value)
