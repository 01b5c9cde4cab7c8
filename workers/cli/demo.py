"""`chordage demo`: what it is about, in ten seconds."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.output import console, json_option, print_json

if TYPE_CHECKING:
    from chordage.workers.demo.played import Part, Played
    from chordage.workers.demo.show import Quiet
    from chordage.workers.fleet.fleet import Fleet, StopSignals


@click.command()
@json_option
def demo(as_json: bool) -> None:
    """See a turn run over several worker processes.

    Starts a broker, a database and three workers in a temporary folder, hands in one message, shows who does what
    where, and ends all of it again. Needs no API key, no service and no network.
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


def _perform(folder: Path, show: Quiet) -> Played:
    from chordage.workers.demo import QUESTION
    from chordage.workers.demo.play import play, submit
    from chordage.workers.fleet.fleet import StopSignals

    with StopSignals() as signals:
        fleet = _fleet(folder, signals)
        try:
            _start(fleet, show)
            show.said("you", QUESTION)
            played = play(fleet, submit(fleet.settings, QUESTION), show.tell, signals.check)
            show.summary(played)
        finally:
            with show.busy("ending the workers, the broker last …"):
                fleet.stop_or_kill()
        return played


def _start(fleet: Fleet, show: Quiet) -> None:
    began = time.monotonic()
    show.title()
    with show.busy("starting a broker, a database and three workers …"):
        fleet.start()
    show.started(fleet, time.monotonic() - began)


def _fleet(folder: Path, signals: StopSignals) -> Fleet:
    """In a folder of its own, whatever the settings of this folder are."""
    from chordage.config.settings import load
    from chordage.workers import demo as room
    from chordage.workers.fleet import roles
    from chordage.workers.fleet.fleet import Fleet

    room.copy_to(folder)
    settings = load(room=folder, state=folder / ".chordage", database_url=f"sqlite:///{folder / 'execution.db'}")
    return Fleet(settings, roles.workers(), check=signals.check, own_redis=True)


def _as_json(played: Played, seconds: float) -> dict[str, Any]:
    turn = played.turn
    return {
        "turn": {
            "turn_id": turn.turn_id,
            "thread_id": turn.thread_id,
            "disposition": turn.disposition,
            "answer": turn.answer,
        },
        "models": [_part(part, "model") for part in played.model_calls],
        "calls": [_part(part, "tool") for part in played.calls],
        "seconds": round(seconds, 3),
    }


def _part(part: Part, kind: str) -> dict[str, Any]:
    named = {"tool": part.what} if kind == "tool" else {}
    return {
        **named,
        "worker": part.worker,
        "member": part.member,
        "status": part.status,
        "started": part.started,
        "ended": part.ended,
    }
