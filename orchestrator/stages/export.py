"""Not in the line of a turn: send the spans of ended runs to a collector of traces.

One process sends at a time: the cursor in the journal is claimed, with a lease. It moves when a collector has taken the
spans up to there. A process that dies in between has sent some of them, and the next one sends them again: they have
the same ids, so a collector may see a span twice and never another. While the collector is away nothing is sent and
nothing is lost; the cursor records why, and until when nothing is tried. Spans that it refuses for good are left out,
and so are those of a run whose rows a bug of ours cannot read; the log names both.

Not promised: spans of runs that are deleted before they were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from chordage.orchestrator.core import otlp
from chordage.orchestrator.core.bus import BusCursor
from chordage.orchestrator.core.errors import TryLater, Undeliverable, UserError
from chordage.orchestrator.core.retry import Backoff
from chordage.orchestrator.core.spans import Span
from chordage.orchestrator.gateways.ports import TraceCollector
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import projection
from chordage.orchestrator.store.projection import TRACES
from chordage.orchestrator.views.spans import run_spans

log = structlog.get_logger()

ROWS = 500  # of the journal, at one go
SPANS = 500  # of one request, and so many of further runs
LEASE = 60.0  # seconds, of one request
BACKOFF = Backoff(first=1.0, longest=60.0)
LONGEST_PAUSE = 3600.0  # seconds, whatever a collector wants
FIRST = timedelta(hours=1)  # a fleet that begins to export sends the runs that ended since then


@dataclass(frozen=True, kw_only=True, slots=True)
class _ExportClaim:
    token: str
    cursor: BusCursor


def export_traces(rt: Runtime) -> bool:
    """Send what is new. True: there may be more."""
    if rt.collector is None:
        return False
    with rt.store.read() as tx:
        state = projection.load(tx, TRACES)
    if state is not None and (not state.is_free(rt.now()) or state.top <= state.mark.position):
        return False
    claim = _take(rt)
    if claim is None:
        return False
    ends, are_all = projection.settled_rows(rt.store, projection.ended_runs, claim.cursor.position, ROWS)
    batch: list[Span] = []
    try:
        for end in ends:
            batch += _spans_of(rt, end.run_id) if end.run_id is not None else []
            if len(batch) >= SPANS:
                _send(rt.collector, batch)
                batch = []
                if not _move(rt, claim, end.id):
                    return False
        _send(rt.collector, batch)
    except TryLater as error:
        _fail(rt, claim, error, failures=0 if state is None else state.failures)
        return False
    last = ends[-1].id if ends else claim.cursor.position
    return _move(rt, claim, last, is_last=True) and not are_all


def _spans_of(rt: Runtime, run_id: str) -> list[Span]:
    """One run whose rows cannot be told must not keep back all that end after it."""
    try:
        return run_spans(rt.store, run_id)
    except UserError:  # the database does not answer
        raise
    except Exception:
        log.exception("the spans of a run cannot be made and are left out", run=run_id)
        return []


def _send(collector: TraceCollector, spans: Sequence[Span]) -> None:
    for first in range(0, len(spans), SPANS):
        part = spans[first : first + SPANS]
        try:
            collector.send("".join(otlp.document(part)).encode())
        except Undeliverable as error:
            traces = sorted({span.trace_id for span in part})
            log.error("spans are refused and left out", error=str(error), spans=len(part), traces=traces)  # noqa: TRY400 - no bug of ours: the answer says why


def _take(rt: Runtime) -> _ExportClaim | None:
    token = rt.new_id()
    with Unit(rt, rt.store.single) as unit:
        if projection.load(unit.tx, TRACES) is None:
            projection.begin(unit.tx, "", TRACES, projection.first_since(unit.tx, unit.now - FIRST))
        until = unit.now + timedelta(seconds=LEASE)
        cursor = projection.claim(unit.tx, token, rt.worker, now=unit.now, until=until, name=TRACES)
    return _ExportClaim(token=token, cursor=cursor) if cursor else None


def _move(rt: Runtime, claim: _ExportClaim, to: int, *, is_last: bool = False) -> bool:
    """False: another process has the claim by now. `is_last`: the claim is released."""
    with Unit(rt, rt.store.single) as unit:
        until = None if is_last else unit.now + timedelta(seconds=LEASE)
        reached = replace(claim.cursor, position=to)
        return projection.move(unit.tx, claim.token, reached, now=unit.now, until=until, name=TRACES)


def _fail(rt: Runtime, claim: _ExportClaim, error: TryLater, *, failures: int) -> None:
    pause = min(max(error.seconds or 0.0, BACKOFF.delay(failures + 1)), LONGEST_PAUSE)
    log.warning("no spans are sent", error=str(error), again_in=pause)
    with Unit(rt, rt.store.single) as unit:
        again_at = unit.now + timedelta(seconds=pause)
        projection.fail(unit.tx, claim.token, str(error), now=unit.now, again_at=again_at, name=TRACES)
