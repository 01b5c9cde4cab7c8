"""What kind of worker is asked for: a role, and what of it is to be different."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

import click

from chordage.config.settings import Settings
from chordage.orchestrator.core.groups import ALL_QUEUES, DELIVERY_QUEUE, SYSTEM_QUEUE, Group


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
    numbered: bool = False  # its name is to be told apart from that of others like it


def plan_of(
    role: Role,
    settings: Settings,
    *,
    queues: str | None = None,
    groups: str | None = None,
    reserved: bool = False,
    pool: str | None = None,
    concurrency: int | None = None,
    name: str | None = None,
    events: bool = False,
) -> Plan:
    if reserved:
        _check_alone({"--queues": queues, "--groups": groups, "--concurrency": concurrency}, beside="--reserved")
        groups, concurrency = Group.CHAT.value, settings.reserve
    if groups is not None:
        _check_alone({"--queues": queues}, beside="--groups")
    served = _groups_named(groups) if groups is not None else None
    kind = Pool(pool) if pool else Pool.PREFORK if role is Role.TOOLS else Pool.THREADS
    return Plan(
        name=name or _usual_name(role, served, reserved=reserved),
        numbered=name is None,
        queues=_named(queues, settings) if queues is not None else queues_of(role, settings, served),
        pool=kind,
        concurrency=concurrency or _usual_concurrency(role, kind),
        events=events,
    )


def queues_of(role: Role, settings: Settings, served: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """In the order in which they are served. Intake is as little work as `system`, and must not wait behind turns.
    `served`: only these groups, and `system` with the intake only where it is among them.
    """
    shared = (SYSTEM_QUEUE, DELIVERY_QUEUE, *settings.intake_queues)
    names = (SYSTEM_QUEUE, *Group) if served is None else served
    of_groups = [group for group in Group if group.value in names]
    queues: list[str] = [] if role is Role.TOOLS or SYSTEM_QUEUE not in names else [*shared]
    for group in of_groups:
        queues += [group.queue] if role is not Role.TOOLS else []
        queues += [group.tools_queue] if role is not Role.TURNS else []
    return tuple(queues)


def _groups_named(given: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    known = (*(group.value for group in Group), SYSTEM_QUEUE)
    for name in names:
        if name not in known:
            told = f"there is no group {name!r}: choose from {', '.join(known)}"
            raise click.BadParameter(told, param_hint="--groups")
    if not any(name != SYSTEM_QUEUE for name in names):
        raise click.BadParameter(f"name at least one of {', '.join(Group)}", param_hint="--groups")
    return names


def _check_alone(others: dict[str, object], *, beside: str) -> None:
    for option, given in others.items():
        if given is not None:
            raise click.UsageError(f"{beside} says which queues it serves and how many at once: leave out {option}")


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


def _usual_name(role: Role, served: tuple[str, ...] | None, *, reserved: bool) -> str:
    return "-".join((role.value, *(served or ()), *(("reserved",) if reserved else ())))


def _usual_concurrency(role: Role, pool: Pool) -> int:
    if pool is Pool.PREFORK:
        return PROCESSES
    return THREADS_OF_TURNS if role is Role.TURNS else THREADS_OF_ALL
