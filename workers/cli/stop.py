"""`chordage stop`: the fleet of this folder ends."""

from __future__ import annotations

import time
from pathlib import Path

import click

from chordage.workers.cli.output import busy, say, span

EPILOG = "Exit codes: 0 it is stopped; 1 none was running here, or it could not be ended."


@click.command(epilog=EPILOG)
@click.option(
    "--grace", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds, before it is killed."
)
def stop(grace: float) -> None:
    """Stop the fleet that `chordage start`, `run` or `dev` runs on this folder.

    It is asked to end in order: who lets work in first, then the workers, the broker last. Who has not ended after the
    grace is killed. Queued and running turns go on with the next start.
    """
    from chordage.config.settings import load
    from chordage.workers.fleet import background, fleet_file

    settings = load()
    fleet = fleet_file.running_in(settings.state_path)
    room = settings.room_path if fleet is None else Path(fleet.room)
    began = time.monotonic()
    with busy("stopping …"):
        stopped = background.stop(room, settings.state_path, grace)
    took = span(time.monotonic() - began)
    if stopped.end is background.End.KILLED:
        say(f"killed process {stopped.pid}, which had not ended within {grace:g} s ({took})")
    elif stopped.pid is not None:
        say(f"stopped process {stopped.pid} ({took})")
    for member in stopped.left_behind:
        say(f"killed {member.name}, process {member.pid}, which a fleet had left behind")
