"""`chordage status`: what runs on this folder."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.output import ago, json_option, print_json, print_table, say, span

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.workers.cli.fleet_health import Health
    from chordage.workers.fleet.agent_run import FleetSummary, MemberStatus

RUNS, UNWELL, STOPPED = 0, 1, 3
EPILOG = """\
Exit codes: 0 it runs and all is well; 1 it runs, and something is not well; 3 nothing runs here.
"""


@click.command(epilog=EPILOG)
@json_option
def status(as_json: bool) -> None:
    """Say whether a fleet runs on this folder, of which processes, what queues, and whether all it needs answers.

    A summary that was left by a fleet that was killed (agent.run in the room) is put right.
    """
    from chordage.workers.cli import fleet_health
    from chordage.workers.cli.opened import settings_of_command

    settings = settings_of_command()
    found = fleet_health.look(settings)
    if as_json:
        print_json(_as_json(settings, found))
    else:
        _print(settings, found)
    raise click.exceptions.Exit(STOPPED if found.pid is None else RUNS if found.is_well else UNWELL)


def _as_json(settings: Settings, found: Health) -> dict[str, Any]:
    summary = found.summary
    runs = summary is not None and found.is_ready
    return {
        "status": _word(found),
        "running": found.pid is not None,
        "pid": found.pid,
        "version": summary.version if summary else None,
        "loops": summary.loops if summary else [],
        "endpoint": summary.endpoint if summary else None,
        "room": str(settings.room_path),
        "state": str(settings.state_path),
        "database": _database(settings),
        "redis": _redis(settings),
        "started_at": summary.started_at if summary else None,
        "heartbeat_at": summary.heartbeat_at if summary else None,
        "uptime": round(_uptime(found), 1) if runs else None,
        "restarts": summary.restarts if summary else 0,
        "restarted_at": summary.restarted_at if summary else None,
        "members": [_member(one) for one in summary.members] if summary else [],
        "left_behind": [{"name": one.name, "pid": one.pid} for one in found.left_behind],
        "groups": found.groups,
        "connections": {"taken": found.capacity.taken, "at_most": found.capacity.at_most} if found.capacity else None,
        "health": found.faults,
        "faults": found.room,
    }


def _member(one: MemberStatus) -> dict[str, Any]:
    restarted = {"restarts": one.restarts, "restarted_at": one.restarted_at}
    return {"name": one.name, "pid": one.pid, "state": one.state, **restarted}


def _word(found: Health) -> str:
    if found.pid is None:
        return "stopped"
    return "running" if found.is_ready else "starting"


def _uptime(found: Health) -> float:
    assert found.summary is not None
    assert found.summary.started_at is not None
    return (datetime.now(UTC) - found.summary.started_at).total_seconds()


def _print(settings: Settings, found: Health) -> None:
    for line in _head(settings, found):
        say(line)
    if found.is_ready and found.summary is not None:
        say()
        rows = [(one.name, one.pid, one.state, _restarted(one)) for one in found.summary.members]
        print_table(("process", "pid", "state", "restarted"), rows)
    if found.is_ready or any(one.running or one.queued for one in found.groups):
        say()
        print_table(("group", "running", "queued", "oldest due"), list(_rows(found)))
    _print_faults(found)


def _head(settings: Settings, found: Health) -> Iterator[str]:
    summary = found.summary
    if found.pid is None:
        yield f"nothing runs on {settings.state_path}; `chordage start` starts a fleet"
        if summary is not None and summary.heartbeat_at is not None:
            yield f"  last sign of life {ago(summary.heartbeat_at)}"
        if found.is_cleaned_up:
            yield "  it was killed; its keeper ends what is left of it"
        if settings.redis_url is not None:
            yield "  workers that a supervisor started are not looked for here: `celery -A chordage status` lists them"
        return
    if not found.is_ready or summary is None:
        yield f"chordage starts, process {found.pid}"
        return
    yield f"chordage {summary.version} runs, process {found.pid}, for {span(_uptime(found))}"
    named = (
        ("HTTP", summary.endpoint),
        ("loops", ", ".join(summary.loops)),
        ("room", summary.room),
        ("database", summary.database),
        ("Redis", _redis(settings)),
        ("", found.capacity and f"{found.capacity.taken} of {found.capacity.at_most} connections are taken"),
        ("logs", settings.state_path / "logs"),
    )
    yield from (f"  {name:<10}{value}" for name, value in named if value)
    if (told := _restarted(summary)) is not None:
        yield f"  restarted {told}: what died of its processes, logs say why"


def _restarted(one: FleetSummary | MemberStatus) -> str | None:
    """Of a process, or of all of them together."""
    if one.restarted_at is None:
        return None
    return f"{'once' if one.restarts == 1 else f'{one.restarts} times, last'} {ago(one.restarted_at)}"


def _rows(found: Health) -> Iterator[tuple[object, ...]]:
    for one in found.groups:
        queued = f"{one.queued}+" if one.queued_or_more else one.queued
        yield one.group, f"{one.running}/{one.budget}", queued, one.waits_since


def _print_faults(found: Health) -> None:
    faults = {name: told for name, told in found.faults.items() if told}
    for name, told in faults.items():
        say(f"chordage: {name}: {told}", err=True)
    for told in found.room:
        say(f"chordage: {told}", err=True)
    if found.room:
        number = f"{len(found.room)} fault{'s' if len(found.room) != 1 else ''}"
        say(f"chordage: the room has {number}; what is broken waits until it is repaired", err=True)
    for member in found.left_behind if not found.is_cleaned_up else ():
        told = f"{member.name}, process {member.pid}, was left behind by a fleet that is gone; `chordage stop` ends it"
        say(f"chordage: {told}", err=True)
    if found.pid is not None and found.is_well:
        say(f"\nall is well: {', '.join((*found.faults, 'room'))}")


def _database(settings: Settings) -> str:
    from chordage.workers.fleet.agent_run import without_password

    return without_password(settings.database)


def _redis(settings: Settings) -> str | None:
    from chordage.workers.fleet.agent_run import without_password

    return None if settings.redis is None else without_password(settings.redis)
