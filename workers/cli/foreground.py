"""A fleet that runs for as long as its command does: what `chordage dev` and `chordage run` have in common."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chordage.config.settings import Loop, Settings, load
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.system import private_files
from chordage.workers.cli.output import busy, say, tell_if_open
from chordage.workers.fleet import agent_run, fleet_file, roles, state_lock
from chordage.workers.fleet.agent_run import without_password
from chordage.workers.fleet.member import free_port

if TYPE_CHECKING:
    from chordage.workers.fleet.fleet import Fleet, StopSignals
    from chordage.workers.fleet.member import Role


def settings_of(*, host: str | None, port: int | None, asked: Sequence[Loop], room: Path | None = None) -> Settings:
    """Complete: with a port, and with the loops that are on."""
    before = load(host=host, port=port, room=room)
    given = {"host": host, "port": before.port or free_port(), "room": room}  # port 0: any that is free
    if room is not None:
        given["state"] = load().state_path
    return load(**given, loops=roles.choose_loops(before, asked))


def check(settings: Settings, members: Sequence[Role]) -> None:
    """All that can be found wrong before anything is started."""
    check_alone(settings)
    check_room(settings)
    check_state(settings.state_path)
    if any(role.name == "web" for role in members):
        _check_port(settings)
        tell_if_open(settings.host)


def check_alone(settings: Settings) -> None:
    agent_run.corrected(settings.room_path)
    if (pid := state_lock.fleet_pid(settings.state_path)) is not None:
        raise Unavailable(
            f"a fleet runs on {settings.state_path} already, process {pid}: use that one, or stop it: `chordage stop`"
        )


def check_state(state: Path) -> None:
    """What a fleet keeps there it cannot do without: its lock, its logs, and where it is."""
    try:
        private_files.folder(state)
        with tempfile.TemporaryFile(dir=state):
            pass
    except OSError as error:
        raise Unavailable(
            f"the state folder {state} cannot be written ({error.strerror}): make it so, or name another folder in "
            "CHORDAGE_STATE"
        ) from error


def check_room(settings: Settings) -> None:
    """What is broken is told before anything is started, and stops nothing else."""
    from chordage.workers import checking

    for told in (faults := checking.faults_of_room(settings)):
        _say(told)
    if faults:
        _say("the rest of the room goes on; an agent that is broken waits until it is repaired, with all work for it")


def _check_port(settings: Settings) -> None:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        raise Unavailable(
            f"the HTTP server cannot listen on {settings.host}:{settings.port} ({error.strerror}): "
            "give another one with --port or --host"
        ) from error


def hold(settings: Settings, members: Sequence[Role], *, command: str, ready_file: Path | None = None) -> None:
    """Start it, and return when somebody has asked it to end and it has."""
    from chordage.workers.fleet.fleet import Fleet, StopSignals

    with StopSignals() as signals:
        fleet = Fleet(settings, members, say=_say, check=signals.check)
        try:
            _hold(fleet, signals, ready_file)
        except KeyboardInterrupt:
            say(f"chordage: {_interrupted(fleet, killed=signals.forced)}", err=True)
            raise click.exceptions.Exit(signals.code) from None
    say(f"ended; queued and running turns go on with the next `chordage {command}`", dim=True)


def _hold(fleet: Fleet, signals: StopSignals, ready_file: Path | None) -> None:
    began = time.monotonic()
    try:
        with busy("starting …"):
            fleet.start()
        _greet(fleet, time.monotonic() - began)
        if ready_file is not None:
            private_files.write(ready_file, f"{os.getpid()}\n")
        signals.wait()
    finally:
        with busy("signals: the HTTP server, the workers, the broker last …  (Ctrl-C again kills them)"):
            fleet.stop_or_kill()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def _interrupted(fleet: Fleet, *, killed: bool) -> str:
    """Of a fleet that was not up yet, or that was not let end."""
    names = [member.name for member in fleet.members if member.started] + (["valkey"] if fleet.valkey else [])
    told = f"interrupted; {'killed' if killed else 'stopped'}: {', '.join(names)}" if names else "interrupted"
    if any(member.running for member in fleet.members):
        return f"{told}; its keeper ends what is left of it in a moment"
    return f"{told}; nothing is left running"


def _say(text: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} ", nl=False, dim=True)
    say(text)


def _greet(fleet: Fleet, seconds: float) -> None:
    settings = fleet.settings
    what = f"{len(fleet.members)} processes{' and a broker' if fleet.valkey else ''}, {seconds:.1f} s"
    say("chordage is up", nl=False, bold=True, fg="green")
    say(f"  {what}\n", dim=True)
    url = next((member.role.url for member in fleet.members if member.role.url), None)
    for name, where in (
        ("HTTP", f"{url}  API: {url}/docs" if url else None),
        ("loops", ", ".join(settings.loops)),
        ("Redis", without_password(str(settings.redis))),
        ("room", settings.room_path),
        ("database", without_password(settings.database)),
        ("logs", f"{fleet.state / 'logs'}"),
    ):
        if where is not None:
            say(f"  {name:<10}", nl=False)
            say(str(where), fg="cyan")
    say("\nSend a turn", bold=True)
    for line in _ways(url, _address(str(settings.redis), fleet), settings.broker_prefix):
        say(f"  {line}")
    say("\nCtrl-C ends it, and so does `chordage stop`.", dim=True)


def _address(url: str, fleet: Fleet) -> str:
    """Whole for the person in front of the terminal. What goes into a log has no password, and says where it lies."""
    shown = without_password(url)
    return url if shown == url or sys.stdout.isatty() else f"<redis_url of {fleet.state / fleet_file.FILE}>"


def _ways(url: str | None, redis: str, prefix: str) -> tuple[str, ...]:
    http = f"""curl -s "{url}/turns?wait=20" -H 'content-type: application/json' -d '{{"text": "Hello"}}'"""
    return (
        'chordage submit "Hello"',
        *((http,) if url else ()),
        f"""app = Celery(broker="{redis}"); app.conf.broker_transport_options = {{"global_keyprefix": "{prefix}"}}""",
        """app.send_task("turns.submit", kwargs={"text": "Hello"})""",
    )
