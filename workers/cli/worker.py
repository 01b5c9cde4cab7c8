"""`chordage worker`: one Celery worker, in this process."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from chordage.config.settings import Settings
from chordage.orchestrator.core.groups import ALL_QUEUES, SYSTEM_QUEUE, TOOL_QUEUES, TURN_QUEUES
from chordage.workers.fleet.found import settings_for_cli


class Role(StrEnum):
    TURNS = "turns"
    TOOLS = "tools"
    ALL = "all"


class Pool(StrEnum):
    THREADS = "threads"
    PREFORK = "prefork"


CORES = os.cpu_count() or 2
THREADS_OF_TURNS = 128
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


@click.command()
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.ALL.value,
    show_default=True,
    help="turns: decides and calls models, in threads. tools: runs tools, in processes. all: both, for small machines.",
)
@click.option(
    "--queues", metavar="NAMES", help="Only these queues, first served first: chat,task or chore.tools,will.tools."
)
@click.option("--pool", type=click.Choice([pool.value for pool in Pool]), help="threads, or prefork for processes.  [default: by role]")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help=f"Tasks at once.  [default: {THREADS_OF_TURNS} threads for turns, {THREADS_OF_ALL} for all, {PROCESSES} processes]",
)
@click.option("--name", help="Name among the workers of this machine.  [default: the role]")
@click.option("--events", is_flag=True, help="Report every task, for Flower.")
@click.option("--ready-file", type=click.Path(path_type=Path), help="Written when the worker is ready, for probes.")
def worker(
    role: str,
    queues: str | None,
    pool: str | None,
    concurrency: int | None,
    name: str | None,
    events: bool,
    ready_file: Path | None,
) -> None:
    """Start one worker. It ends on SIGTERM or Ctrl-C, and hands over what it has in hand."""
    settings = settings_for_cli()
    plan = plan_of(Role(role), settings, queues=queues, pool=pool, concurrency=concurrency, name=name, events=events)
    _check(settings)
    sys.exit(run(settings, plan, ready_file))


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
    """In the order in which they are served. Intake is as small as what `system` does, and must not wait behind turns."""
    intake = settings.intake_queues
    match role:
        case Role.TURNS:
            return (SYSTEM_QUEUE, *intake, *TURN_QUEUES)
        case Role.TOOLS:
            return TOOL_QUEUES
        case Role.ALL:
            return (SYSTEM_QUEUE, *intake, *(queue for queue in ALL_QUEUES if queue != SYSTEM_QUEUE))


def _named(given: str, settings: Settings) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    known = (*ALL_QUEUES, *settings.intake_queues)
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"there is no queue {name!r}: choose from {', '.join(known)}", param_hint="--queues"
            )
    if not names:
        raise click.BadParameter(f"name at least one of {', '.join(known)}", param_hint="--queues")
    return names


def _usual_concurrency(role: Role, pool: Pool) -> int:
    if pool is Pool.PREFORK:
        return PROCESSES
    return THREADS_OF_TURNS if role is Role.TURNS else THREADS_OF_ALL


def _check(settings: Settings) -> None:
    """Everything that can be found broken is found before Celery starts, and said in one line."""
    from chordage.orchestrator.gateways.room import Room
    from chordage.workers.bootstrap import check_room, check_services

    check_services(settings)
    check_room(Room(settings.room_path))


def run(settings: Settings, plan: Plan, ready_file: Path | None = None) -> int:
    # Read by billiard when it is imported: the children of a prefork pool then leave SIGTERM to their parent, also where
    # a supervisor sends it to every process of a service.
    os.environ["REMAP_SIGTERM"] = "SIGQUIT"
    from celery import signals

    from chordage.workers.app import make_app
    from chordage.workers.leaving import Leaving

    app = make_app(settings)
    app.conf.worker_soft_shutdown_timeout = 0  # Leaving has waited already

    @signals.worker_ready.connect(weak=False)
    def when_ready(sender: Any, **_: Any) -> None:
        Leaving(sender, grace=settings.soft_shutdown).listen()
        if ready_file:
            ready_file.write_text(f"{os.getpid()}\n")

    process = app.Worker(**_options(settings, plan))
    process.start()
    _end_at_once(process.exitcode)


def _options(settings: Settings, plan: Plan) -> dict[str, Any]:
    from chordage.workers.pool import THREADS

    return {
        "hostname": plan.name if "@" in plan.name else f"{plan.name}@{socket.gethostname()}",
        "queues": list(plan.queues),
        "pool_cls": THREADS if plan.pool is Pool.THREADS else "prefork",
        "concurrency": plan.concurrency,
        "task_events": plan.events,
        "loglevel": settings.log_level.upper(),
        "quiet": True,
        "without_mingle": True,
        "without_gossip": True,
    }


def _end_at_once(code: int | None) -> Any:
    """Python would wait for every thread that is still in a tool; what they do is back in its queue by now."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
