"""`chordage show`: a turn, a run or a thread, with all that was said and done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.output import json_option, print_json

if TYPE_CHECKING:
    from chordage.orchestrator.store.tx import Store


@click.command()
@click.argument("some_id", metavar="TURN|RUN|THREAD")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Remarks of a thread.")
@json_option
def show(some_id: str, limit: int, as_json: bool) -> None:
    """Show what was said, and each step: model calls with their cost, tool calls with status, worker and duration.

    The first letters of an id are enough where no other begins so.
    """
    from chordage.workers.cli import showing
    from chordage.workers.cli.opened import opened, settings_of_command

    with opened(settings_of_command()) as store:
        found = _found(store, some_id, limit)
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(showing.lines_of(found)))


def _found(store: Store, some_id: str, limit: int) -> dict[str, Any]:
    from chordage.orchestrator import views
    from chordage.orchestrator.views import Subject

    subject, found = views.subject_of(store, some_id)
    match subject:
        case Subject.TURN:
            turn = views.turn(store, found)
            run = views.run(store, turn.run_id) if turn.run_id else None
            return {"kind": subject, "turn": turn, "run": run, **_beside(store, turn.turn_id)}
        case Subject.RUN:
            run = views.run(store, found)
            turn = views.turn(store, run.turn_id)
            return {"kind": subject, "turn": turn, "run": run, **_beside(store, turn.turn_id)}
        case Subject.THREAD:
            said = views.history(store, found, limit=limit)
            return {"kind": subject, "thread": views.thread(store, found), "history": said}


def _beside(store: Store, turn_id: str) -> dict[str, Any]:
    """What its consumer did, and what left for whoever is to be told."""
    from chordage.orchestrator import views

    return {"driven": views.driven(store, turn_id), "delivery": views.delivery_of(store, turn_id)}
