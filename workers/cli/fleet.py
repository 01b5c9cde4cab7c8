"""`chordage dev`, `run`, `start` and `stop`: the fleet of a folder, in the foreground or in the background."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chordage.config.settings import LOOPS, Loop, Settings, environment, load
from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.cli.context import check_keys
from chordage.workers.cli.keys import login_url
from chordage.workers.cli.output import INTERRUPTED, busy, say, span

if TYPE_CHECKING:
    from chordage.workers.fleet.fleet import Fleet, StopSignals
    from chordage.workers.fleet.member import MemberRole

F = TypeVar("F", bound=Callable[..., Any])


def size_options(command: F) -> F:
    """The options of `dev`, `run` and `start`."""
    tools = click.option(
        "--tools", type=click.IntRange(1, 16), default=2, show_default=True, help="Worker processes for tools."
    )
    host = click.option("--host", help="Where the HTTP server listens.  [default: 127.0.0.1]")
    port = click.option("--port", type=click.IntRange(0, 65535), help="Its port; 0 for any.  [default: 8630]")
    return tools(host(port(command)))


def fleet_options(command: F) -> F:
    """The options of `run` and `start`."""
    loops = click.option(
        "--loop",
        "loops",
        type=click.Choice(LOOPS),
        multiple=True,
        help="Run only these loops; repeatable.  [default: all that have something to do]",
    )
    no_workers = click.option("--no-workers", is_flag=True, help="Only the loops; workers run elsewhere, or later.")
    return loops(no_workers(size_options(command)))


@click.command()
@click.option("--demo", "with_demo", is_flag=True, help="With the example room instead of this folder.")
@size_options
def dev(host: str | None, port: int | None, with_demo: bool, tools: int) -> None:
    """Start everything on this machine: Redis, workers, beat and the HTTP server. Ctrl-C ends it.

    The state is kept in .chordage: queued and running turns continue the next time. Other commands find this fleet by
    themselves when they run in this folder.
    """
    from chordage.workers.fleet import roles

    room = None
    if with_demo:
        from chordage.workers import demo

        room = load().state_path / "demo"
        demo.copy_to(room)
    settings = _settings(host=host, port=port, wanted=(), room=room)
    members = roles.of_fleet(settings, tools=tools, with_workers=True)
    _check(settings, members)
    hold(settings, members, command="dev", with_login=True)


@click.command()
@fleet_options
@click.option("--ready-file", type=click.Path(path_type=Path), help="Written when all are ready, for probes.")
def run(*, loops: tuple[Any, ...], tools: int, no_workers: bool, ready_file: Path | None, **address: Any) -> None:
    """Run HTTP, polling, schedules and workers in the foreground, until Ctrl-C or SIGTERM.

    \b
    server  HTTP               hook   webhooks, by the same HTTP server
    poll    channels.toml      pulse  tasks, chores and will, by Celery beat

    Starts its own Redis if none is set. `chordage start` does the same in the background.
    """  # noqa: D301 - click's mark for lines that stay as they are
    from chordage.workers.fleet import roles

    settings = _settings(**address, wanted=loops)
    members = roles.of_fleet(settings, tools=tools, with_workers=not no_workers)
    _check(settings, members)
    hold(settings, members, command="run", ready_file=ready_file)


@click.command()
@fleet_options
def start(*, loops: tuple[str, ...], tools: int, no_workers: bool, host: str | None, port: int | None) -> None:
    """Start what `chordage run` runs, in the background, and return when it is ready.

    It keeps running when this terminal is closed. `chordage status` shows its state, `chordage stop` ends it.
    """
    from chordage.workers.fleet import agent_run, background, state_lock

    settings = load(host=host, port=port)
    _check_before_start(settings)
    if {"server", "hook"} & set(loops or settings.loops):
        check_keys(settings)
    values = [("--tools", tools), ("--host", host), ("--port", port), *(("--loop", loop) for loop in loops)]
    options = [word for name, value in values if value is not None for word in (name, str(value))]
    options += ["--no-workers"] if no_workers else []
    try:
        with busy("starting …"):
            fleet = background.start(settings.state_path, options, environment())
    except KeyboardInterrupt:
        is_ending = state_lock.fleet_is_held(settings.state_path)
        rest = "is still ending; `chordage stop` waits for that" if is_ending else "has ended; nothing is left running"
        say(f"chordage: interrupted; the fleet that was starting {rest}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    say(f"chordage runs in the background, process {fleet.pid}")
    summary = agent_run.of_fleet(settings.room_path, settings.state_path)
    if summary is not None and summary.pid == fleet.pid:
        if summary.endpoint is not None:
            say(f"  HTTP  {summary.endpoint}")
        say(f"  loops {', '.join(summary.loops)}")
    say(f"  log   {fleet.log}")


@click.command(epilog="Exit codes: 0 it is stopped; 1 none was running here, or it could not be ended.")
@click.option(
    "--grace", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds, before it is killed."
)
def stop(grace: float) -> None:
    """Stop the fleet that `chordage start`, `run` or `dev` runs on this folder.

    It ends in order: first the processes that let work in, then the workers, the broker last. Processes that have not
    ended after the grace are killed. Queued and running turns continue with the next start.
    """
    from chordage.workers.fleet import background, fleet_file

    settings = load()
    fleet = fleet_file.running_in(settings.state_path)
    room = settings.room_path if fleet is None else Path(fleet.room)
    began = time.monotonic()
    with busy("stopping …"):
        stopped = background.stop(room, settings.state_path, grace)
    seconds = span(time.monotonic() - began)
    if stopped.killed:
        say(f"killed process {stopped.pid}, which had not ended within {grace:g} s ({seconds})")
    elif stopped.pid is not None:
        say(f"stopped process {stopped.pid} ({seconds})")
    for member in stopped.left_behind:
        say(f"killed {member.name}, process {member.pid}, which an earlier fleet had left behind")


# Before anything is started


def _settings(*, host: str | None, port: int | None, wanted: Sequence[Loop], room: Path | None = None) -> Settings:
    """With a port, and with the loops that run."""
    from chordage.workers.fleet import roles
    from chordage.workers.fleet.member import free_port

    before = load(host=host, port=port, room=room)
    overrides = {"host": host, "port": before.port or free_port(), "room": room}  # port 0: any free one
    if room is not None:
        overrides["state"] = load().state_path
    return load(**overrides, loops=roles.choose_loops(before, wanted))


def _check(settings: Settings, members: Sequence[MemberRole]) -> None:
    _check_before_start(settings)
    if any(role.name == "web" for role in members):
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            socket.create_server((settings.host, settings.port), family=family).close()
        except OSError as error:
            raise Unavailable(
                f"the HTTP server cannot listen on {settings.host}:{settings.port} ({error.strerror}): "
                "give another one with --port or --host"
            ) from error
        check_keys(settings)


def _check_before_start(settings: Settings) -> None:
    """No other fleet runs here, and the state folder can be written. Faults of the room are only printed."""
    from chordage.orchestrator.system import private_files
    from chordage.workers import room_check
    from chordage.workers.fleet import agent_run, state_lock

    state = settings.state_path
    agent_run.corrected(settings.room_path)
    if (pid := state_lock.fleet_pid(state)) is not None:
        raise Unavailable(f"a fleet runs on {state} already, process {pid}: use that one, or stop it: `chordage stop`")
    for fault in (faults := room_check.faults_of_room(settings)):
        _say(fault)
    if faults:
        _say("the rest of the room works; a broken agent waits until it is repaired, with all work for it")
    try:  # for its lock, its logs and its address
        private_files.folder(state)
        with tempfile.TemporaryFile(dir=state):
            pass
    except OSError as error:
        raise Unavailable(
            f"the state folder {state} cannot be written ({error.strerror}): make it so, or name another folder in "
            "CHORDAGE_STATE"
        ) from error


# While it runs in the foreground


def hold(
    settings: Settings,
    members: Sequence[MemberRole],
    *,
    command: str,
    ready_file: Path | None = None,
    with_login: bool = False,
) -> None:
    """Run the fleet until it is asked to end, and return when it has ended. `with_login`: print a link to log in."""
    from chordage.workers.fleet.fleet import Fleet, StopSignals

    with StopSignals() as signals:
        fleet = Fleet(settings, members, say=_say, check=signals.check)
        try:
            _run(fleet, signals, ready_file, with_login=with_login)
        except KeyboardInterrupt:
            say(f"chordage: {_interrupted(fleet, killed=signals.forced)}", err=True)
            raise click.exceptions.Exit(signals.code) from None
    say(f"ended; queued and running turns continue with the next `chordage {command}`", dim=True)


def _run(fleet: Fleet, signals: StopSignals, ready_file: Path | None, *, with_login: bool) -> None:
    from chordage.orchestrator.system import private_files

    began = time.monotonic()
    try:
        with busy("starting …"):
            fleet.start()
        _greet(fleet, time.monotonic() - began, with_login=with_login)
        if ready_file is not None:
            private_files.write(ready_file, f"{os.getpid()}\n")
        signals.wait()
    finally:
        with busy("ending: the HTTP server, the workers, the broker last …  (Ctrl-C again kills them)"):
            fleet.stop_or_kill()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def _interrupted(fleet: Fleet, *, killed: bool) -> str:
    """Before the fleet was up, or before it had ended in order."""
    names = [member.name for member in fleet.members if member.started] + (["valkey"] if fleet.valkey else [])
    ended = f"interrupted; {'killed' if killed else 'stopped'}: {', '.join(names)}" if names else "interrupted"
    if any(member.running for member in fleet.members):
        return f"{ended}; its reaper ends the rest in a moment"
    return f"{ended}; nothing is left running"


def _say(text: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} ", nl=False, dim=True)
    say(text)


def _greet(fleet: Fleet, seconds: float, *, with_login: bool = False) -> None:
    from chordage.workers.fleet import fleet_file
    from chordage.workers.fleet.agent_run import without_password

    settings = fleet.settings
    url = next((member.role.url for member in fleet.members if member.role.url), None)
    redis = shown_redis = without_password(str(settings.redis))
    if redis != str(settings.redis):  # a log must not hold the password: only a terminal shows the whole address
        redis = str(settings.redis) if sys.stdout.isatty() else f"<redis_url of {fleet.state / fleet_file.FILE}>"
    say("chordage is up", nl=False, bold=True, fg="green")
    say(f"  {len(fleet.members)} processes{' and a broker' if fleet.valkey else ''}, {seconds:.1f} s\n", dim=True)
    for name, value in (
        ("HTTP", f"{url}  API: {url}/docs" if url else None),
        ("console", login_url(settings, url=url) if url and with_login else None),
        ("loops", ", ".join(settings.loops)),
        ("Redis", shown_redis),
        ("room", settings.room_path),
        ("database", without_password(settings.database)),
        ("logs", f"{fleet.state / 'logs'}"),
    ):
        if value is not None:
            say(f"  {name:<10}", nl=False)
            say(str(value), fg="cyan")
    say("\nSend a turn", bold=True)
    say('  chordage submit "Hello"')
    if url:
        say(f"""  curl -s "{url}/turns?wait=20" -H 'content-type: application/json' -d '{{"text": "Hello"}}'""")
    say(f"""\
  REDIS_URL = "{redis}"
  app = Celery("shop", broker=REDIS_URL, backend=REDIS_URL)
  app.conf.broker_transport_options = app.conf.result_backend_transport_options = \
{{"global_keyprefix": "{settings.broker_prefix}"}}
  result = app.send_task("turns.submit", kwargs={{"text": "Hello"}}, queue="chat")
  turn_id = result.get(timeout=10)""")
    say("\nCtrl-C ends it, and so does `chordage stop`.", dim=True)
