"""The trace of a run and of its whole tree, read from the rows run by run: no more than one run is in memory."""

from __future__ import annotations

from collections.abc import Iterator

from chordage.orchestrator.core import message
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.model import usage_from
from chordage.orchestrator.core.records import Checkpoint, Entry, Run
from chordage.orchestrator.core.spans import (
    AskedQuestion,
    LostClaim,
    RunRows,
    Span,
    SpanLink,
    link_of_caller,
    span_of_run,
    spans_of,
    trace_id,
)
from chordage.orchestrator.store import calls, fork_record, journal, runs, takeovers, trace_reads
from chordage.orchestrator.store import usage as usage_rows
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.views.ids import find_turn


def run_of(store: Store, some_id: str, *, agent: str | None = None, source: str | None = None) -> str:
    """The run of a message, which is named as in `trace`. Raises NotFound."""
    return run_of_turn(store, find_turn(store, some_id, agent=agent, source=source))


def run_of_turn(store: Store, turn_id: str, *, space: str | None = None) -> str:
    """The run that handled this turn, or that took it in. Raises NotFound, also outside of that space."""
    with store.read() as tx:
        row = trace_reads.turn_row(tx, turn_id)
        while row is not None and row["into_turn"] is not None:
            row = trace_reads.turn_row(tx, row["into_turn"])
    home = None if row is None else row["root_thread"] or row["thread_id"]
    if row is None or home is None or not message.holds(space, home):
        raise NotFound(f"there is no turn {turn_id!r}; `chordage turns` lists what there is")
    if row["run_id"] is None:
        raise NotFound(
            f"turn {row['id']} has no run, so it has no spans: it is {row['disposition'] or row['status']}; "
            f"`chordage trace {row['id']}` shows what happened to its message"
        )
    return str(row["run_id"])


def trace_spans(store: Store, run_id: str, *, contents: bool = False, space: str | None = None) -> Iterator[Span]:
    """Of the whole tree that the run is part of, parents first. Raises NotFound before the first span, also outside of
    that space.
    """
    with store.read() as tx:
        run = runs.load(tx, run_id)
    if run is None or not message.holds(space, run.home_thread):
        raise NotFound(f"there is no run {run_id!r}; `chordage turns` lists turns with their runs")
    return _tree(store, run.kin.root_run if run.kin else run.id, contents=contents)


def _tree(store: Store, root_run: str, *, contents: bool) -> Iterator[Span]:
    waiting = [root_run]
    while waiting:
        run_id = waiting.pop()
        yield from run_spans(store, run_id, contents=contents)
        with store.read() as tx:
            children = trace_reads.children_of(tx, run_id)
        waiting += [child["run_id"] for child in reversed(children) if child["run_id"] is not None]


def run_spans(store: Store, run_id: str, *, contents: bool = False) -> list[Span]:
    """Of this run alone: a part of the trace of its tree. None if its rows were deleted."""
    with store.read() as tx:
        run = runs.load(tx, run_id)
        rows = None if run is None else _rows(tx, run)
    return [] if rows is None else spans_of(rows, contents=contents)


def _rows(tx: Tx, run: Run) -> RunRows:
    entries = journal.of_run(tx, run.id)
    of_calls = calls.of_run(tx, run.id)
    turn = trace_reads.turn_row(tx, run.turn_id)
    children = trace_reads.children_of(tx, run.id)
    questions = (
        trace_reads.questions_of(tx, run.id) if run.suspended or any(each.suspension_id for each in of_calls) else []
    )
    fork = fork_record.load(tx, run.turn_id) if run.fork_of is not None else None
    until = run.ended_at or trace_reads.latest_moment(tx, trace_reads.runs_below(tx, run.id))
    return RunRows(
        run=run,
        usage=run.usage - usage_from(usage_rows.of_children(tx, run.id), "children_"),
        queued_at=turn["queued_at"] if turn is not None and turn["run_id"] == run.id else None,
        until=until,
        parent=calls.load(tx, run.kin.parent_call) if run.kin else None,
        entries=entries,
        calls=of_calls,
        questions=[AskedQuestion(**row) for row in questions],
        lost=[
            LostClaim(**{name: row[name] for name in ("call_id", "step", "worker", "lost_at", "noticed_at")})
            for row in takeovers.of_runs(tx, [run.id])
        ],
        child_since={row["parent_call"]: row["queued_at"] for row in children},
        repeated=fork.kept if fork else 0,
        links=_links(tx, run, entries),
    )


def _links(tx: Tx, run: Run, entries: list[Entry]) -> list[SpanLink]:
    """To the spans of those who have sent its messages, and to the run that it is a fork of."""
    messages = {entry.body.get("turn") for entry in entries if entry.kind is Checkpoint.USER_MESSAGE}
    senders = trace_reads.traceparents_of(tx, [turn_id for turn_id in messages if turn_id])
    links = [link_of_caller(traceparent) for traceparent in dict.fromkeys(senders)]
    if run.fork_of is not None and (source := runs.load(tx, run.fork_of)) is not None:
        root = source.kin.root_run if source.kin else source.id
        links.append(SpanLink(trace_id(root), span_of_run(source.id), "fork"))
    return links
