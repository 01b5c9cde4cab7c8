"""`chordage cancel`: a turn ends, wherever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chordage.workers.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings


@click.command()
@click.argument("turn_id", metavar="TURN")
@click.option("--reason", help="Kept with the run, and shown.")
@json_option
def cancel(turn_id: str, reason: str | None, as_json: bool) -> None:
    """Cancel a turn: a queued one never starts; the run of an active one ends, and what works for it is told to stop.

    The first letters of its id are enough where no other turn begins so.

    Exit code 1 if the turn was done already.
    """
    from chordage.workers.cli.opened import settings_of_command

    turn_id, ended = _cancel(settings_of_command(), turn_id, reason)
    if as_json:
        print_json({"turn_id": turn_id, "cancelled": ended})
    elif ended:
        say(f"turn {turn_id} is cancelled")
    else:
        say(f"chordage: turn {turn_id} is done already; `chordage show {turn_id}` tells how it ended", err=True)
    raise click.exceptions.Exit(0 if ended else 1)


def _cancel(settings: Settings, given: str, reason: str | None) -> tuple[str, bool]:
    """Where no Redis is set no fleet can be running, and nobody needs to be woken."""
    from chordage.orchestrator import stages, views
    from chordage.workers.bootstrap import runtime_from
    from chordage.workers.cli.opened import check_ready

    check_ready(settings)
    with_redis = settings.redis is not None
    rt = runtime_from(settings, with_redis=with_redis)
    try:
        turn_id = views.full_id(rt.store, views.IdKind.TURN, given)
        ended, intents = stages.cancel_turn(rt, turn_id, reason)
        if with_redis:
            from chordage.tasks.courier import Courier
            from chordage.workers.app import make_app

            Courier(make_app(settings)).send(intents)
    finally:
        rt.store.close()
    return turn_id, ended
