"""What kind of worker is asked for: a role, and what of it is to be different."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

import click

from chordage.config.settings import Settings
from chordage.orchestrator.core.groups import ALL_QUEUES, DELIVERY_QUEUE, SYSTEM_QUEUE, TOOL_QUEUES, TURN_QUEUES


class Role(StrEnum):
    TURNS = "turns"
    TOOLS = "tools"
    ALL = "all"


class Pool(StrEnum):
    THREADS = "threads"
    PREFORK = "prefork"


CORES = os.cpu_count() or 2
THREADS_OF_TURNS = 128  # they wait on the network: a thread costs less than a megabyte
THREADS_OF_ALL = 64
PROCESSES = 4 * CORES


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What kind of worker is asked for."""

    name: str
    queues: tuple[str, ...]
    pool: Pool
    concurrency: int
    events: bool = False


def plan_of(
    role: Role,
    settings: Settings,
    *,
    queues: str | None = None,
    pool: str | None = None,
    concurrency: int | None = None,
    name: str | None = None,
    events: bool = False,
) -> Plan:
    kind = Pool(pool) if pool else Pool.PREFORK if role is Role.TOOLS else Pool.THREADS
    return Plan(
        name=name or role.value,
        queues=_named(queues, settings) if queues is not None else queues_of(role, settings),
        pool=kind,
        concurrency=concurrency or _usual_concurrency(role, kind),
        events=events,
    )


def queues_of(role: Role, settings: Settings) -> tuple[str, ...]:
    """In the order in which they are served. Intake is as little work as `system`, and must not wait behind turns."""
    intake = settings.intake_queues
    first = (SYSTEM_QUEUE, DELIVERY_QUEUE)
    match role:
        case Role.TURNS:
            return (*first, *intake, *TURN_QUEUES)
        case Role.TOOLS:
            return TOOL_QUEUES
        case Role.ALL:
            return (*first, *intake, *(queue for queue in ALL_QUEUES if queue not in first))


def _named(given: str, settings: Settings) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    known = (*ALL_QUEUES, *settings.intake_queues)
    for name in names:
        if name not in known:
            told = f"there is no queue {name!r}: choose from {', '.join(known)}"
            raise click.BadParameter(told, param_hint="--queues")
    if not names:
        raise click.BadParameter(f"name at least one of {', '.join(known)}", param_hint="--queues")
    return names


def _usual_concurrency(role: Role, pool: Pool) -> int:
    if pool is Pool.PREFORK:
        return PROCESSES
    return THREADS_OF_TURNS if role is Role.TURNS else THREADS_OF_ALL
