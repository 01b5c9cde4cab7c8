"""How the fleet of a folder is: what it says of itself, and whether what it needs answers. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.store.capacity import Capacity, capacity
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.groups import GroupView
from chordage.workers import connections
from chordage.workers.fleet import agent_run, state_lock
from chordage.workers.fleet.agent_run import HEARTBEAT, FleetSummary, MemberState, MemberStatus

SILENT_AFTER = 6 * HEARTBEAT
PATIENCE = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    pid: int | None  # of the fleet; None: none runs
    is_ready: bool  # it has said that it is up
    is_cleaned_up: bool  # it was killed, and its keeper ends what is left
    summary: FleetSummary | None
    faults: dict[str, str | None]  # by what was asked; None where it is well
    room: list[str]  # what is broken of the room, and waits until it is repaired
    groups: list[GroupView]
    capacity: Capacity | None  # of PostgreSQL
    left_behind: tuple[MemberStatus, ...]  # processes of a fleet that is gone

    @property
    def is_well(self) -> bool:
        return self.is_ready and not any(self.faults.values()) and not self.room and not self.left_behind


def look(settings: Settings) -> Health:
    """`settings` are those of the fleet, where one runs."""
    room = settings.room_path
    pid = state_lock.fleet_pid(settings.state_path)
    summary = agent_run.of_fleet(room, settings.state_path)
    is_ready = pid is not None and summary is not None and summary.pid == pid
    faults: dict[str, str | None] = {}
    groups, limit = _load(settings, faults)
    if pid is not None:
        faults |= {"redis": _fault(lambda: _check_redis(settings))}
    if is_ready and summary is not None:
        faults |= _of_processes(summary)
    left = summary.members if summary is not None and summary.pid is None else ()
    return Health(
        pid=pid,
        is_ready=is_ready,
        is_cleaned_up=pid is None and state_lock.fleet_is_held(settings.state_path),
        summary=summary,
        faults=faults,
        room=_of_room(settings),
        groups=groups,
        capacity=limit,
        left_behind=left,
    )


def _of_room(settings: Settings) -> list[str]:
    """Its Python is imported for it, as a worker does."""
    from chordage.workers import checking

    try:
        return checking.faults_of_room(settings)
    except UserError as error:
        return [str(error).splitlines()[0]]


def _load(settings: Settings, faults: dict[str, str | None]) -> tuple[list[GroupView], Capacity | None]:
    from chordage.workers.cli.opened import opened

    groups: list[GroupView] = []
    limits: list[Capacity] = []

    def ask() -> None:
        with opened(settings) as store:
            groups.extend(_groups(store, settings))
            if (limit := capacity(store)) is not None:
                limits.append(limit)

    if not _has_no_database(settings):
        faults["database"] = _fault(ask)
    for limit in limits:
        faults["connections"] = connections.fault(limit)
    return groups, limits[0] if limits else None


def _groups(store: Store, settings: Settings) -> list[GroupView]:
    from chordage.workers.bootstrap import budgets_from, queue_bounds_from

    bounds = queue_bounds_from(settings)
    return views.groups(store, now=datetime.now(UTC), budgets=budgets_from(settings), bounds=bounds)


def _has_no_database(settings: Settings) -> bool:
    """Before the first start there is none, and that is no fault."""
    file = settings.database.removeprefix("sqlite:///")
    return file != settings.database and not Path(file).exists()


def _check_redis(settings: Settings) -> None:
    from chordage.workers.bootstrap import check_redis

    check_redis(settings)


def _of_processes(summary: FleetSummary) -> dict[str, str | None]:
    silent = (datetime.now(UTC) - (summary.heartbeat_at or datetime.now(UTC))).total_seconds()
    faults = {"fleet": f"has not written agent.run for {silent:.0f} s" if silent > SILENT_AFTER else None}
    for member in summary.members:
        if member.state is not MemberState.RUNNING or not member.lives:
            faults[member.name] = "it starts" if member.state is MemberState.STARTING else "it is down"
    if summary.endpoint is not None:
        faults["http"] = _fault_of_http(summary.endpoint)
    return faults


def _fault_of_http(endpoint: str) -> str | None:
    try:
        answer = httpx.get(f"{endpoint}/health", timeout=PATIENCE, trust_env=False)
    except httpx.HTTPError as error:
        return f"{endpoint} does not answer ({type(error).__name__})"
    return None if answer.is_success else f"{endpoint}/health says {answer.status_code}: {answer.text.strip()[:200]}"


def _fault(check: Callable[[], None]) -> str | None:
    try:
        check()
    except UserError as error:
        return str(error)
    return None
