"""`chordage show`: a turn, a run or a thread, with all that was said and done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.output import json_option, print_json, say, say_lines

if TYPE_CHECKING:
    from chordage.orchestrator.store.database import Store


@click.command()
@click.argument("some_id", metavar="TURN|RUN|THREAD|CALL")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Remarks of a thread.")
@click.option("--full", is_flag=True, help="Of a turn or run: also the whole results of which the model saw a part.")
@json_option
def show(some_id: str, limit: int, full: bool, as_json: bool) -> None:
    """Show what was said, and each step: model calls with their cost, tool calls with status, worker and duration.

    The first letters of an id are enough where no other begins so. Of a tool CALL, its whole result; its id is to be
    given in full, as `--json` and the note below a shortened result have it.
    """
    from chordage.workers.cli import showing, showing_results
    from chordage.workers.cli.opened import opened, settings_of_command

    with opened(settings_of_command()) as store:
        found = _found(store, some_id, limit)
        results = showing_results.of_run(store, found["run"].run_id) if full and found.get("run") else []
    if as_json:
        print_json({**found, "results": results} if full else found)
    elif "result" in found:
        say("\n".join(showing_results.lines_of([found["result"]])).lstrip("\n"))
    else:
        say_lines(showing.lines_of(found))
        say("\n".join(showing_results.lines_of(results)), nl=bool(results))


def _found(store: Store, some_id: str, limit: int) -> dict[str, Any]:
    from chordage.orchestrator import views
    from chordage.orchestrator.views import IdKind

    if (call_id := _call(store, some_id)) is not None:
        from chordage.workers.cli import showing_results

        return {"kind": "call", "result": showing_results.of_call(store, call_id)}
    subject, found = views.identify(store, some_id)
    match subject:
        case IdKind.TURN:
            turn = views.turn(store, found)
            run = views.run(store, turn.run_id) if turn.run_id else None
            return {"kind": subject, "turn": turn, "run": run, **_beside(store, turn.turn_id)}
        case IdKind.RUN:
            run = views.run(store, found)
            turn = views.turn(store, run.turn_id)
            return {"kind": subject, "turn": turn, "run": run, **_beside(store, turn.turn_id)}
        case IdKind.THREAD:
            said = views.history(store, found, limit=limit)
            return {"kind": subject, "thread": views.thread(store, found), "history": said}


def _call(store: Store, some_id: str) -> str | None:
    """Its id, if it is a tool call that is meant."""
    from chordage.orchestrator import views

    call_id = some_id.removeprefix("call:")
    return call_id if call_id != some_id or views.is_call(store, call_id) else None


def _beside(store: Store, turn_id: str) -> dict[str, Any]:
    """What its consumer did, and what left for whoever is to be told."""
    from chordage.orchestrator import views

    return {"driven": views.driven(store, turn_id), "delivery": views.delivery_of(store, turn_id)}
