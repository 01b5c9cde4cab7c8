"""`chordage threads`: threads, and what happens on them."""

from __future__ import annotations

import click

from chordage.workers.cli.output import json_option, print_json, print_table


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@json_option
def threads(limit: int, as_json: bool) -> None:
    """List threads, those with the newest turn first."""
    from chordage.orchestrator import views
    from chordage.workers.cli.opened import opened, settings_of_command

    with opened(settings_of_command()) as store:
        found = views.threads(store, limit=limit)
    if as_json:
        print_json(found)
        return
    rows = [
        (line.thread_id, line.agent, line.turns, line.queued, line.open_run_status, line.open_run, line.last_activity)
        for line in found
    ]
    columns = ("thread", "agent", "turns", "queued", "state", "run", "active")
    print_table(columns, rows, empty="no threads; `chordage submit TEXT` makes one")
