"""What kind of worker to start: its options, role, queues, pool and name. No Celery is imported here."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

import click
import structlog

from chordage.config.settings import Settings
from chordage.orchestrator.core.groups import ALL_QUEUES, DELIVERY_QUEUE, SYSTEM_QUEUE, Group
from chordage.orchestrator.system import private_files

log = structlog.get_logger()


class WorkerRole(StrEnum):
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
NAMES_FOLDER = "workers"  # in the state directory
MOST_NAMES = 1000
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlan:
    name: str
    queues: tuple[str, ...]
    pool: Pool
    concurrency: int
    events: bool = False
    numbered: bool = False  # its name gets a number that no other worker of this machine has


def worker_options() -> tuple[click.Option, ...]:
    """Of `chordage worker` and of `celery -A chordage worker`."""
    return (
        click.Option(
            ("--role",),
            type=click.Choice([role.value for role in WorkerRole]),
            default=WorkerRole.ALL.value,
            show_default=True,
            help="turns: decides and calls models, in threads. tools: runs tools, in processes. all: both, in threads, "
            "for small machines.",
        ),
        click.Option(
            ("--groups",),
            metavar="NAMES",
            help="Only these groups: chat,task. Add system for work that belongs to none; some worker must serve it.",
        ),
        click.Option(
            ("--reserved",),
            is_flag=True,
            help="Only for chat, with as many slots as the setting `reserve`; with 0 it does nothing until it ends.",
        ),
        click.Option(
            ("--ready-file",), type=click.Path(path_type=Path), help="Written when the worker is ready, for probes."
        ),
    )


def plan_of(
    role: WorkerRole,
    settings: Settings,
    *,
    queues: str | None = None,
    groups: str | None = None,
    reserved: bool = False,
    pool: str | None = None,
    concurrency: int | None = None,
    name: str | None = None,
    events: bool = False,
) -> WorkerPlan:
    if reserved:
        _check_alone({"--queues": queues, "--groups": groups, "--concurrency": concurrency}, beside="--reserved")
        groups, concurrency = Group.CHAT.value, settings.reserve
    if groups is not None:
        _check_alone({"--queues": queues}, beside="--groups")
    served = _groups_from(groups) if groups is not None else None
    kind = Pool(pool) if pool else Pool.PREFORK if role is WorkerRole.TOOLS else Pool.THREADS
    return WorkerPlan(
        name=name or _default_name(role, served, reserved=reserved),
        numbered=name is None,
        queues=_queues_from(queues, settings) if queues is not None else queues_of(role, settings, served),
        pool=kind,
        concurrency=concurrency or _default_concurrency(role, kind),
        events=events,
    )


def queues_of(role: WorkerRole, settings: Settings, served: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """In the order in which they are served. Intake is as little work as `system`, and must not wait behind turns.
    `served`: only these groups, and `system` with the intake only where it is among them.
    """
    shared = (SYSTEM_QUEUE, DELIVERY_QUEUE, *settings.intake_queues)
    names = (SYSTEM_QUEUE, *Group) if served is None else served
    of_groups = [group for group in Group if group.value in names]
    queues: list[str] = [] if role is WorkerRole.TOOLS or SYSTEM_QUEUE not in names else [*shared]
    for group in of_groups:
        queues += [group.queue] if role is not WorkerRole.TOOLS else []
        queues += [group.tools_queue] if role is not WorkerRole.TURNS else []
    return tuple(queues)


def _groups_from(option: str) -> tuple[str, ...]:
    names = _names_from(option, "group", (*(group.value for group in Group), SYSTEM_QUEUE))
    if not any(name != SYSTEM_QUEUE for name in names):
        raise click.BadParameter(f"name at least one of {', '.join(Group)}", param_hint="--groups")
    return names


def _names_from(option: str, what: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in option.split(",") if name.strip()))
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"there is no {what} {name!r}: choose from {', '.join(known)}", param_hint=f"--{what}s"
            )
    return names


def _check_alone(others: dict[str, object], *, beside: str) -> None:
    for option, value in others.items():
        if value is not None:
            raise click.UsageError(f"{beside} says which queues it serves and how many at once: leave out {option}")


def _queues_from(option: str, settings: Settings) -> tuple[str, ...]:
    known = (*ALL_QUEUES, *settings.intake_queues)
    names = _names_from(option, "queue", known)
    if not names:
        raise click.BadParameter(f"name at least one of {', '.join(known)}", param_hint="--queues")
    return names


def _default_name(role: WorkerRole, served: tuple[str, ...] | None, *, reserved: bool) -> str:
    return "-".join((role.value, *(served or ()), *(("reserved",) if reserved else ())))


def _default_concurrency(role: WorkerRole, pool: Pool) -> int:
    if pool is Pool.PREFORK:
        return PROCESSES
    return THREADS_OF_TURNS if role is WorkerRole.TURNS else THREADS_OF_ALL


_held: list[IO[str]] = []  # locked files of names, open until this process ends


def worker_hostname(name: str, folder: Path, *, numbered: bool) -> str:
    """The name Celery shows, with the host's; a name with an @ has one already.

    Workers of one name are one worker to Celery: Flower shows one row, and `inspect` takes the first reply for all. So
    `numbered` adds the lowest free number. It is held by a lock on a file, which the kernel releases when the worker
    ends, however it ends: its replacement gets the same name, and monitors collect no dead ones.
    """
    if "@" in name:
        return name
    return f"{_with_number(name, folder / NAMES_FOLDER) if numbered else name}@{socket.gethostname()}"


def _with_number(name: str, folder: Path) -> str:
    try:
        private_files.folder(folder)
        for number in range(1, MOST_NAMES):
            if (file := _lock(folder / f"{name}-{number}.lock")) is not None:
                _held.append(file)
                return f"{name}-{number}"
    except OSError as error:
        log.info("no number for the name of this worker; its process id is used", why=str(error))
    return f"{name}-{os.getpid()}"


def _lock(path: Path) -> IO[str] | None:
    file = open(path, "a", encoding="utf-8", opener=private_files.opener)  # noqa: SIM115 - open as long as it is held
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:  # a file system without locks
        file.close()
        raise
    return file


def wait_without_reserve(ready_file: Path | None, say: Callable[[str], object]) -> None:
    """For `chordage worker --reserved` where nothing is reserved: do nothing until a stop signal comes.

    So a Procfile or a compose file may always name that worker, and the setting `reserve` alone decides.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        say("reserve is 0, so no slots are kept for chat and this worker has nothing to do")
        if ready_file:
            private_files.write(ready_file, f"{os.getpid()}\n")
        signal.sigwait(STOP_SIGNALS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
