"""`chordage demo`: a turn over several worker processes, in ten seconds."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.output import console, json_option, print_json

if TYPE_CHECKING:
    from chordage.workers.demo.play import PlayedTurn
    from chordage.workers.demo.show import Quiet


@click.command()
@json_option
def demo(as_json: bool) -> None:
    """See a turn run over several worker processes.

    Starts a broker, a database and three workers in a temporary folder, sends one message, shows which process does
    what, and ends everything again. Needs no API key, no service and no network.
    """
    from chordage.workers.demo.show import Quiet, Show

    began = time.monotonic()
    show = Quiet() if as_json else Show(console())
    with tempfile.TemporaryDirectory(prefix="chordage-demo-") as folder:
        played = _perform(Path(folder), show)
    show.next_steps()
    if as_json:
        print_json(_as_json(played, time.monotonic() - began))
    if played.turn.answer is None:
        raise click.exceptions.Exit(1)


def _perform(folder: Path, show: Quiet) -> PlayedTurn:
    """In a folder of its own, whatever the settings of this folder are."""
    from chordage.config.settings import load
    from chordage.workers import demo as room
    from chordage.workers.demo.play import play, submit
    from chordage.workers.fleet import roles
    from chordage.workers.fleet.fleet import Fleet, StopSignals

    room.copy_to(folder)
    settings = load(room=folder, state=folder / ".chordage", database_url=f"sqlite:///{folder / 'execution.db'}")
    with StopSignals() as signals:
        fleet = Fleet(settings, roles.workers(), check=signals.check, own_redis=True)
        began = time.monotonic()
        try:
            show.title()
            with show.busy("starting a broker, a database and three workers …"):
                fleet.start()
            show.started(fleet, time.monotonic() - began)
            show.message("you", room.QUESTION)
            played = play(fleet, submit(fleet.settings, room.QUESTION), show.event, signals.check)
            show.summary(played)
        finally:
            with show.busy("ending the workers, the broker last …"):
                fleet.stop_or_kill()
        return played


def _as_json(played: PlayedTurn, seconds: float) -> dict[str, Any]:
    names = ("turn_id", "thread_id", "disposition", "answer")
    models, calls = ([asdict(span) for span in spans] for spans in (played.model_calls, played.calls))
    return {
        "turn": {name: getattr(played.turn, name) for name in names},
        "models": [{name: value for name, value in span.items() if name != "what"} for span in models],
        "calls": [{"tool": span.pop("what"), **span} for span in calls],
        "seconds": round(seconds, 3),
    }
