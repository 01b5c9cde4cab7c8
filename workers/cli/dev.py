"""`chordage dev`: everything on this machine, in the foreground."""

from __future__ import annotations

import re
import socket
import time
from typing import TYPE_CHECKING

import click

from chordage.config.settings import Settings, load
from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.workers.cli.output import busy, console
from chordage.workers.fleet.found import running_in
from chordage.workers.fleet.ports import free_port

if TYPE_CHECKING:
    from chordage.workers.fleet.fleet import Fleet

NO_ROOM = """{folder} holds no agent: there is no agent.toml. Any of these helps:
  chordage init         puts an example room here
  chordage dev --demo   runs that example without leaving files of it here
or write an agent.toml like this:
  name = "helper"
  model = "openai:gpt-4o-mini"    # and set OPENAI_API_KEY
  instructions = "You are helpful and brief.\""""


@click.command()
@click.option("--host", help="Where the HTTP server listens.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port.  [default: 8630]")
@click.option("--demo", "with_demo", is_flag=True, help="With the example room instead of this folder.")
@click.option("--tools", type=click.IntRange(1, 16), default=2, show_default=True, help="Worker processes for tools.")
def dev(host: str | None, port: int | None, with_demo: bool, tools: int) -> None:
    """Start everything on this machine: Redis, workers, beat and the HTTP server. Ctrl-C ends it.

    State lies in .chordage, so queued and running turns go on the next time. Other commands run in this folder find
    this fleet by themselves.
    """
    settings = _settings(host, port, with_demo)
    _check_alone(settings)
    _check_room(settings)
    _check_port(settings)
    _run(settings, tools)


def _settings(host: str | None, port: int | None, with_demo: bool) -> Settings:
    settings = load(host=host, port=port)
    port = settings.port or free_port()  # 0: any that is free
    if not with_demo:
        return load(host=host, port=port)
    from chordage.workers import demo

    room = settings.state_path / "demo"
    demo.copy_to(room)
    return load(host=host, port=port, room=room, state=settings.state_path)


def _check_alone(settings: Settings) -> None:
    if (fleet := running_in(settings.state_path)) is not None:
        raise Unavailable(
            f"a fleet runs on {settings.state_path} already, process {fleet.pid}: use that one, or stop it: "
            f"`kill {fleet.pid}`"
        )


def _check_room(settings: Settings) -> None:
    """Broken agents are said before anything is started."""
    if not (settings.room_path / "agent.toml").exists() and not any(settings.room_path.glob("agents/*.toml")):
        raise ConfigError(NO_ROOM.format(folder=settings.room_path))

    from chordage.config import settings as config
    from chordage.orchestrator.gateways.hooks import file as hooks
    from chordage.workers.bootstrap import check_room, room_from

    check_room(room_from(settings), time_limit=settings.tool_time_limit)
    for fault in hooks.faults(settings.room_path, config.environment()):
        _say(f"{fault}\nthe rest of the fleet goes on; `chordage hooks` lists the web hooks")


def _check_port(settings: Settings) -> None:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        raise Unavailable(
            f"the HTTP server cannot listen on {settings.host}:{settings.port} ({error.strerror}): "
            "give another one with --port or --host"
        ) from error


def _run(settings: Settings, tools: int) -> None:
    from chordage.workers.fleet import roles
    from chordage.workers.fleet.ending import Ending
    from chordage.workers.fleet.fleet import Fleet

    members = [
        *roles.workers(tools=tools, reserve=settings.reserve),
        roles.beat(),
        roles.web(settings.host, settings.port),
    ]
    began = time.monotonic()
    with Ending() as ending:
        fleet = Fleet(settings, members, say=_say, check=ending.check)
        try:
            with busy("starting …"):
                fleet.start()
            _greet(fleet, time.monotonic() - began)
            ending.wait()
        finally:
            with busy("ending: the HTTP server, the workers, the broker last …  (Ctrl-C again kills them)"):
                fleet.stop_or_kill()
    console().print("[dim]ended; queued and running turns go on with the next `chordage dev`[/]")


def _say(text: str) -> None:
    console().print(f"[dim]{time.strftime('%H:%M:%S')}[/] ", end="")
    console().print(text, markup=False)


def _greet(fleet: Fleet, seconds: float) -> None:
    from chordage.workers.fleet import roles

    show = console()
    settings = fleet.settings
    url = f"http://{roles.local(settings.host)}:{settings.port}"
    show.print(f"[bold green]chordage is up[/]  [dim]{len(fleet.members)} processes and a broker, {seconds:.1f} s[/]\n")
    for name, where in (
        ("HTTP", f"{url}  [dim]API: {url}/docs[/]"),
        ("Redis", _without_password(str(settings.redis))),
        ("room", settings.room_path),
        ("database", _without_password(settings.database)),
        ("logs", f"{fleet.state / 'logs'}"),
    ):
        show.print(f"  {name:<10}[cyan]{where}[/]")
    show.print("\n[bold]Send a turn[/]")
    for line in _ways(url, str(settings.redis)):
        show.print(f"  {line}", markup=False)
    show.print("\n[dim]Ctrl-C ends it.[/]")


def _without_password(url: str) -> str:
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


def _ways(url: str, redis: str) -> tuple[str, ...]:
    return (
        'chordage submit "Hello"',
        f"""curl -s "{url}/turns?wait=20" -H 'content-type: application/json' -d '{{"text": "Hello"}}'""",
        f"""Celery(broker="{redis}").send_task("turns.submit", kwargs={{"text": "Hello"}})""",
    )
