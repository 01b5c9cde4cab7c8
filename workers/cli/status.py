"""`chordage status`: what runs on this folder, and whether what it needs answers. It changes nothing but agent.run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.core.text import counted
from chordage.workers.cli.context import command_settings, has_no_database, open_store
from chordage.workers.cli.output import ago, json_option, print_json, print_table, say, say_lines, span

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.core.why.reasons import WaitReason
    from chordage.orchestrator.store.capacity import Capacity
    from chordage.orchestrator.views.groups import GroupView
    from chordage.orchestrator.views.processes import ProcessView
    from chordage.workers.fleet.agent_run import FleetSummary, MemberStatus

RUNS, UNWELL, STOPPED = 0, 1, 3
HTTP_TIMEOUT = 3.0
EPILOG = """\
Exit codes: 0 it runs and all is well; 1 it runs, and something is not well; 3 nothing runs here.
"""


@click.command(epilog=EPILOG)
@json_option
def status(as_json: bool) -> None:
    """Show this folder's fleet and its health: processes, what is queued, and whether the services it needs answer.

    If a fleet was killed, its summary (agent.run in the room) is corrected.
    """
    settings = command_settings()
    health = _read_health(settings)
    print_json(_as_json(settings, health)) if as_json else _print(settings, health)
    raise click.exceptions.Exit(STOPPED if health.pid is None else RUNS if health.is_well else UNWELL)


# What is read


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetHealth:
    pid: int | None  # of the fleet; None: none runs
    is_ready: bool  # it has reported that it is up
    is_cleaned_up: bool  # it was killed, and its reaper ends the rest
    summary: FleetSummary | None
    faults: dict[str, str | None]  # by what was checked; None: it is well
    room: list[str]  # what is broken in the room, and waits until it is repaired
    groups: list[GroupView]
    processes: list[ProcessView]  # of all machines, as the database has them
    waits_longest: WaitReason | None  # of everything that waits
    capacity: Capacity | None  # of PostgreSQL
    left_behind: tuple[MemberStatus, ...]  # processes of an earlier fleet

    @property
    def is_well(self) -> bool:
        return self.is_ready and not any(self.faults.values()) and not self.room and not self.left_behind


def _read_health(settings: Settings) -> FleetHealth:
    from chordage.workers import room_check
    from chordage.workers.bootstrap import check_redis
    from chordage.workers.fleet import agent_run, state_lock

    pid = state_lock.fleet_pid(settings.state_path)
    summary = agent_run.of_fleet(settings.room_path, settings.state_path)
    is_ready = pid is not None and summary is not None and summary.pid == pid
    database = _read_database(settings)
    faults = dict(database.faults)
    if pid is not None:
        faults["redis"] = _fault(lambda: check_redis(settings))
    if is_ready and summary is not None:
        faults |= _process_faults(summary)
    try:
        room = room_check.faults_of_room(settings)  # imports the room's Python, as a worker does
    except UserError as error:
        room = [str(error).splitlines()[0]]
    return FleetHealth(
        pid=pid,
        is_ready=is_ready,
        is_cleaned_up=pid is None and state_lock.fleet_is_held(settings.state_path),
        summary=summary,
        faults=faults,
        room=room,
        groups=database.groups,
        processes=database.processes,
        waits_longest=database.waits_longest,
        capacity=database.capacity,
        left_behind=summary.members if summary is not None and summary.pid is None else (),
    )


@dataclass(kw_only=True, slots=True)
class _DatabaseState:
    faults: dict[str, str | None]
    groups: list[GroupView] = field(default_factory=list)
    processes: list[ProcessView] = field(default_factory=list)
    waits_longest: WaitReason | None = None
    capacity: Capacity | None = None


def _read_database(settings: Settings) -> _DatabaseState:
    """Before the first start there is no database, and that is no fault."""
    from chordage.orchestrator import views
    from chordage.orchestrator.store.capacity import capacity
    from chordage.workers import connections
    from chordage.workers.bootstrap import budgets_from, queue_bounds_from
    from chordage.workers.cli.why import sources_of

    found = _DatabaseState(faults={})
    if has_no_database(settings):
        return found
    try:
        with open_store(settings) as store:
            budgets, bounds = budgets_from(settings), queue_bounds_from(settings)
            found.groups = views.groups(store, now=datetime.now(UTC), budgets=budgets, bounds=bounds)
            found.processes = views.processes(store, now=datetime.now(UTC))
            found.waits_longest = next(iter(views.waiting(sources_of(settings, store), limit=1)), None)
            found.capacity = capacity(store)
    except UserError as error:
        found.faults = {"database": str(error)}
        return found
    found.faults["database"] = None
    if found.capacity is not None:
        found.faults["connections"] = connections.fault(found.capacity)
    return found


def _process_faults(summary: FleetSummary) -> dict[str, str | None]:
    from chordage.workers.fleet.agent_run import HEARTBEAT, MemberState

    silent = (datetime.now(UTC) - (summary.heartbeat_at or datetime.now(UTC))).total_seconds()
    faults = {"fleet": f"has not written agent.run for {silent:.0f} s" if silent > 6 * HEARTBEAT else None}
    for member in summary.members:
        if member.state is not MemberState.RUNNING or not member.lives:
            faults[member.name] = "it starts" if member.state is MemberState.STARTING else "it is down"
    if summary.endpoint is not None:
        faults["http"] = _http_fault(summary.endpoint)
    return faults


def _http_fault(endpoint: str) -> str | None:
    import httpx

    try:
        answer = httpx.get(f"{endpoint}/health", timeout=HTTP_TIMEOUT, trust_env=False)
    except httpx.HTTPError as error:
        return f"{endpoint} does not answer ({type(error).__name__})"
    return None if answer.is_success else f"{endpoint}/health says {answer.status_code}: {answer.text.strip()[:200]}"


def _fault(check: Callable[[], None]) -> str | None:
    try:
        check()
    except UserError as error:
        return str(error)
    return None


# What is printed


def _as_json(settings: Settings, health: FleetHealth) -> dict[str, Any]:
    summary = health.summary
    names = ("version", "endpoint", "started_at", "heartbeat_at", "restarted_at")
    members = summary.members if summary else ()
    return {
        "status": "stopped" if health.pid is None else "running" if health.is_ready else "starting",
        "running": health.pid is not None,
        "pid": health.pid,
        **{name: getattr(summary, name, None) for name in names},
        "loops": summary.loops if summary else [],
        "room": str(settings.room_path),
        "state": str(settings.state_path),
        "database": _database(settings),
        "redis": _redis(settings),
        "uptime": round(_uptime(summary), 1) if summary and health.is_ready else None,
        "restarts": summary.restarts if summary else 0,
        "members": [_only(member, "name", "pid", "state", "restarts", "restarted_at") for member in members],
        "left_behind": [_only(member, "name", "pid") for member in health.left_behind],
        "groups": health.groups,
        "processes": health.processes,
        "waits_longest": health.waits_longest,
        "connections": (limit := health.capacity) and {"taken": limit.taken, "at_most": limit.at_most},
        "health": health.faults,
        "faults": health.room,
    }


def _only(member: MemberStatus, *names: str) -> dict[str, Any]:
    return {name: getattr(member, name) for name in names}


def _uptime(summary: FleetSummary) -> float:
    assert summary.started_at is not None
    return (datetime.now(UTC) - summary.started_at).total_seconds()


def _print(settings: Settings, health: FleetHealth) -> None:
    for line in _head(settings, health):
        say(line)
    if health.is_ready and health.summary is not None:
        say()
        members = [(member.name, member.pid, member.state, _restarted(member)) for member in health.summary.members]
        print_table(("process", "pid", "state", "restarted"), members)
    if health.processes:
        say()
        print_table(("at work", "host", "last seen", "holds"), [_process(one) for one in health.processes])
    if health.is_ready or any(group.running or group.queued for group in health.groups):
        say()
        groups = [
            (view.group, f"{view.running}/{view.budget}", f"{view.queued}{'+' * view.queued_or_more}", view.waits_since)
            for view in health.groups
        ]
        print_table(("group", "running", "queued", "oldest due"), groups)
    if health.waits_longest is not None:
        from chordage.workers.cli.why import why_line

        say()
        of = health.waits_longest
        say_lines([f"waits longest: {of.kind.value} {of.id}. {why_line(of)}", "`chordage why` lists what waits"])
    _print_faults(health)


def _process(of: ProcessView) -> tuple[str, str, str, str]:
    held = [counted(of.runs, "run")] * bool(of.runs) + [counted(of.calls, "call")] * bool(of.calls)
    seen = ago(of.seen_at) if of.gone_at is None else f"gone {ago(of.gone_at)}"
    return of.process, of.host, seen, ", ".join(held)


def _head(settings: Settings, health: FleetHealth) -> Iterator[str]:
    summary = health.summary
    if health.pid is None:
        yield f"nothing runs on {settings.state_path}; `chordage start` starts a fleet"
        if summary is not None and summary.heartbeat_at is not None:
            yield f"  last sign of life {ago(summary.heartbeat_at)}"
        if health.is_cleaned_up:
            yield "  it was killed; its reaper ends the rest"
        if settings.redis_url is not None and not health.processes:
            yield "  workers that a supervisor started are not looked for here: `celery -A chordage status` lists them"
        return
    if not health.is_ready or summary is None:
        yield f"chordage starts, process {health.pid}"
        return
    yield f"chordage {summary.version} runs, process {health.pid}, for {span(_uptime(summary))}"
    limit = health.capacity
    for name, value in (
        ("HTTP", summary.endpoint),
        ("loops", ", ".join(summary.loops)),
        ("room", summary.room),
        ("database", summary.database),
        ("Redis", _redis(settings)),
        ("", limit and f"{limit.taken} of {limit.at_most} connections are taken"),
        ("logs", settings.state_path / "logs"),
    ):
        if value:
            yield f"  {name:<10}{value}"
    if (restarted := _restarted(summary)) is not None:
        yield f"  restarted {restarted}: a process had died; the logs say why"


def _restarted(process: FleetSummary | MemberStatus) -> str | None:
    """Of one process, or of all together."""
    if process.restarted_at is None:
        return None
    return f"{'once' if process.restarts == 1 else f'{process.restarts} times, last'} {ago(process.restarted_at)}"


def _print_faults(health: FleetHealth) -> None:
    faults = [f"{name}: {fault}" for name, fault in health.faults.items() if fault] + health.room
    if health.room:
        faults.append(f"the room has {counted(len(health.room), 'fault')}; what is broken waits until it is repaired")
    if not health.is_cleaned_up:
        faults += (
            f"{member.name}, process {member.pid}, was left behind by an earlier fleet; `chordage stop` ends it"
            for member in health.left_behind
        )
    for fault in faults:
        say(f"chordage: {fault}", err=True)
    if health.pid is not None and health.is_well:
        say(f"\nall is well: {', '.join((*health.faults, 'room'))}")


def _database(settings: Settings) -> str:
    from chordage.workers.fleet.agent_run import without_password

    return without_password(settings.database)


def _redis(settings: Settings) -> str | None:
    from chordage.workers.fleet.agent_run import without_password

    return None if settings.redis is None else without_password(settings.redis)
