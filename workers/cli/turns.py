"""`chordage turns`: the newest turns."""

from __future__ import annotations

import click

from chordage.orchestrator.core.status import TurnStatus
from chordage.workers.cli.output import json_option, print_json, print_table


@click.command()
@click.option("--status", type=click.Choice([str(one) for one in TurnStatus]), help="Only these.")
@click.option("--thread", "thread_id", metavar="ID", help="Only of this thread.")
@click.option("--agent", help="Only of this agent.")
@click.option("--before", metavar="TURN", help="Only what came before this turn: the next page.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@json_option
def turns(
    *, status: str | None, thread_id: str | None, agent: str | None, before: str | None, limit: int, as_json: bool
) -> None:
    """List turns, newest first. Of the ids in options the first letters are enough."""
    from chordage.orchestrator import views
    from chordage.workers.cli.opened import opened, settings_of_command

    with opened(settings_of_command()) as store:
        found = views.turns(
            store,
            limit=limit,
            status=TurnStatus(status) if status else None,
            thread_id=thread_id and views.full_id(store, views.IdKind.THREAD, thread_id),
            agent=agent,
            before=before and views.full_id(store, views.IdKind.TURN, before),
        )
    if as_json:
        print_json(found)
        return
    rows = [
        (
            line.turn_id,
            line.disposition or line.status,
            line.path or line.agent,
            line.queued_at,
            _took(line),
            line.thread_id,
            line.text,
        )
        for line in found
    ]
    columns = ("turn", "status", "agent", "came", "took", "thread", "text")
    print_table(columns, rows, empty="no turns; `chordage submit TEXT` makes one")


def _took(line: object) -> str | None:
    from chordage.orchestrator.views.turns import TurnLine
    from chordage.workers.cli.showing_calls import span

    assert isinstance(line, TurnLine)
    if line.started_at is None or line.done_at is None:
        return None
    return span((line.done_at - line.started_at).total_seconds())
