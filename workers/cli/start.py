"""`chordage start`: what `chordage run` runs, in the background."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.output import busy, say, tell_if_open
from chordage.workers.cli.run import fleet_options

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.workers.fleet.member import Member

INTERRUPTED = 130


@click.command()
@fleet_options
def start(*, loops: tuple[str, ...], tools: int, no_workers: bool, host: str | None, port: int | None) -> None:
    """Start what `chordage run` runs in the background, and return when it is ready.

    It has no terminal, and outlives this one. `chordage status` says how it is, `chordage stop` ends it.
    """
    from chordage.config.settings import environment, load
    from chordage.workers.cli import foreground
    from chordage.workers.fleet import background

    settings = load(host=host, port=port)
    foreground.check_alone(settings)
    foreground.check_room(settings)
    foreground.check_state(settings.state_path)
    tell_if_open(settings.host)
    options = [
        *(word for loop in loops for word in ("--loop", loop)),
        *("--tools", str(tools), *(["--no-workers"] if no_workers else [])),
        *_given(host=host, port=port),
    ]
    try:
        with busy("starting …"):
            fleet = background.start(settings.state_path, options, environment())
    except KeyboardInterrupt:
        _tell_interrupted(settings.state_path)
        raise click.exceptions.Exit(INTERRUPTED) from None
    _tell(settings, fleet)


def _tell_interrupted(state: Path) -> None:
    """Somebody who was in a hurry twice did not wait for its end."""
    from chordage.workers.fleet import state_lock

    ends = state_lock.fleet_is_held(state)
    left = "it ends by itself; `chordage stop` waits for that" if ends else "nothing is left running"
    say(f"chordage: interrupted; the fleet that was starting is told to stop, and {left}", err=True)


def _given(**values: Any) -> list[str]:
    return [word for name, value in values.items() if value is not None for word in (f"--{name}", str(value))]


def _tell(settings: Settings, fleet: Member) -> None:
    from chordage.workers.fleet import agent_run

    say(f"chordage runs in the background, process {fleet.pid}")
    summary = agent_run.of_fleet(settings.room_path, settings.state_path)
    if summary is not None and summary.pid == fleet.pid:
        if summary.endpoint is not None:
            say(f"  HTTP  {summary.endpoint}")
        say(f"  loops {', '.join(summary.loops)}")
    say(f"  log   {fleet.log}")
