"""`chordage tail`: what happens to a turn, while it happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.run_events import RunEvent, position_of
from chordage.workers.cli.context import command_settings, open_store
from chordage.workers.cli.output import INTERRUPTED, clock, json_option, print_json_line, say, say_lines, short

if TYPE_CHECKING:
    from chordage.orchestrator.store.database import Store

LOOK = 0.5  # seconds between two looks at the journal


@click.command()
@click.argument("some_id", metavar="TURN|RUN|THREAD|KEY")
@json_option
def tail(some_id: str, as_json: bool) -> None:
    """Print what happened to a turn, and what happens to it until its end.

    Name the turn by its id or that of its run (the first letters are enough), by its dedupe key, or by its thread, for
    the latest turn there. What is committed is shown, not the text while a model writes it. `--json` prints each event
    on a line of its own.
    """
    from chordage.orchestrator.views.ids import find_turn

    with open_store(command_settings()) as store:
        turn_id = find_turn(store, some_id)
        try:
            for event in _events(store, turn_id):
                print_json_line(event) if as_json else say_lines([_line(event)])
        except KeyboardInterrupt:
            say(f"chordage: turn {turn_id} continues; `chordage show {turn_id}` shows how it ends", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


def _events(store: Store, turn_id: str) -> Iterator[RunEvent]:
    """Of a turn that is at work those that are on the bus: rows before them may be uncommitted until then. The rows of
    one that is done are all there, so its end is shown while Redis is away, or without a fleet.
    """
    from chordage.orchestrator.views.run_events import (
        BEGINNING,
        now,
        place_of_turn,
        run_events,
        settled_position,
        turn_notes,
    )

    after = BEGINNING
    while True:
        settled = settled_position(store)  # before the place: it knows the run of all rows up to here
        place = place_of_turn(store, turn_id, space=None)
        upto = now(store)[0] if place.is_done else settled
        events: list[RunEvent] = []
        if place.run_id is not None:
            page = run_events(store, place.run_id, after, upto)
            events, upto = page.events, page.upto
        notes = turn_notes(store, [place.turn_id], after, upto)  # it was queued, ended without a run, was delivered
        events = sorted((*events, *notes.events), key=lambda event: position_of(event.id or ""))
        for event in events:
            assert event.id is not None
            after = position_of(event.id)
            yield event
        if not events:
            if place.is_done:
                return
            time.sleep(LOOK)


def _line(event: RunEvent) -> str:
    data = event.data
    calls = ", ".join(f"{call['tool']} {call.get('status') or ''}".strip() for call in data.get("calls") or ())
    parts = (
        data.get("disposition") or data.get("reason"), data.get("code"), data.get("tool"), calls,
        data.get("text") or data.get("detail"),
    )  # fmt: skip
    at = "" if event.at is None else clock(event.at)
    return f"{at:<8}  {event.kind:<14}  {short('; '.join(str(part) for part in parts if part))}".rstrip()
