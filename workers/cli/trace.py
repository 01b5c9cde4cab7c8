"""`chordage trace`: the path of one message, from its arrival to its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.inert import inert_line
from chordage.workers.cli.context import command_settings, open_store
from chordage.workers.cli.output import json_option, moment, print_document, print_json, say_lines, short, took, wrapped

if TYPE_CHECKING:
    from chordage.orchestrator.store.database import Store
    from chordage.orchestrator.views.trace import TraceEvent, TraceView

INDENT = 25  # of the text of an event, behind its time and its kind
_SECONDS = {"ready": "after {}", "started": "after {}", "ended": "took {}", "waited": "for {}"}


@click.command()
@click.argument("some_id", metavar="TURN|RUN|THREAD|KEY")
@click.option("--agent", help="KEY is a dedupe key of this agent.")
@click.option("--source", help="KEY is a dedupe key of this source: cli, http, celery, ...")
@json_option
@click.option(
    "--otlp", is_flag=True, help="Print the spans of its run and its sub-agents, as OTLP writes them in JSON."
)
@click.option("--contents", is_flag=True, help="With --otlp: with messages, arguments and results.")
def trace(some_id: str, *, agent: str | None, source: str | None, as_json: bool, otlp: bool, contents: bool) -> None:
    """Show how one message was handled: its queue, its run with every step, its end, and what was sent for it.

    Name the message by its turn or its run (the first letters are enough), by its dedupe key, or by its thread, for
    the latest turn there.
    """
    from chordage.orchestrator import views

    if contents and not otlp:
        raise click.UsageError("--contents goes with --otlp: the events of a message have its texts anyway")
    if otlp and as_json:
        raise click.UsageError("--otlp prints JSON of its own: leave --json out")
    with open_store(command_settings()) as store:
        if otlp:
            _print_spans(store, some_id, agent=agent, source=source, contents=contents)
            return
        view = views.trace(store, some_id, agent=agent, source=source)
    if as_json:
        print_json(view)
    else:
        say_lines(lines_of(view))


def _print_spans(store: Store, some_id: str, *, agent: str | None, source: str | None, contents: bool) -> None:
    from chordage.orchestrator.core import otlp
    from chordage.orchestrator.views import spans

    run_id = spans.run_of(store, some_id, agent=agent, source=source)
    print_document(otlp.document(spans.trace_spans(store, run_id, contents=contents)))


def lines_of(view: TraceView) -> Iterator[str]:
    turn = view.turn
    yield f"turn      {turn.turn_id}"
    yield f"thread    {turn.thread_id}"
    yield f"agent     {turn.agent}, {turn.strategy}, group {turn.group.value}"
    yield f"came      {moment(turn.queued_at)}"
    yield from _wrapped("message   ", short(turn.text), 10)
    yield ""
    for event in view.events:
        at = "-" if event.at is None else f"{event.at.astimezone():%H:%M:%S}.{event.at.microsecond // 1000:03d}"
        kind = event.kind.value.replace("_", " ")
        yield from _wrapped(f"{at:<12} {kind:<11} ", "; ".join([event.text, *_details(event)]), INDENT)
    yield ""
    yield from _wrapped("", _end(view), 0)
    if view.on_the_bus is not None:
        yield f"on the bus up to journal {view.on_the_bus}"
    if view.follows is not None:
        yield ""
        yield from lines_of(view.follows)


def _details(event: TraceEvent) -> Iterator[str]:
    if event.seconds is not None:
        yield _SECONDS.get(event.kind, "{}").format(took(event.seconds))
    if event.worker is not None:
        yield f"worker {event.worker}"
    if event.attempts is not None and event.attempts > 1:
        yield f"{event.attempts} attempts"
    if event.step is not None:
        yield f"step {event.step}"
    if event.journal:
        yield f"journal {', '.join(str(position) for position in event.journal)}"


def _end(view: TraceView) -> str:
    if view.disposition is None:
        return f"not done: {view.turn.fate}"
    if view.steered_into is not None:
        return f"disposition: steered, into run {view.steered_into}"
    into = f", into turn {view.merged_into}, whose path follows" if view.merged_into else ""
    return f"disposition: {view.disposition.value}{f' ({view.why})' if view.why else ''}{into}"


def _wrapped(head: str, text: str, indent: int) -> Iterator[str]:
    """On a terminal in lines of its width; elsewhere in one, for grep."""
    line = inert_line(f"{head}{text}")
    yield from wrapped(line, hang=indent) if sys.stdout.isatty() else [line]
