"""`chordage worker`: one Celery worker, in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import click

from chordage.config.settings import Settings
from chordage.workers.cli.output import say
from chordage.workers.fleet.fleet_file import settings_for_cli
from chordage.workers.reserved import idle
from chordage.workers.worker_plan import (
    PROCESSES,
    THREADS_OF_ALL,
    THREADS_OF_TURNS,
    Plan,
    Pool,
    Role,
    plan_of,
)


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
@click.option(
    "--groups",
    metavar="NAMES",
    help="Only these groups: chat,task. With system among them also what belongs to none; some worker must serve it.",
)
@click.option(
    "--reserved",
    is_flag=True,
    help="Only for chat, with as many slots as the setting `reserve` says; with 0 it only waits to be ended.",
)
@click.option(
    "--pool",
    type=click.Choice([pool.value for pool in Pool]),
    help="threads, or prefork for processes.  [default: by role]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help=f"Tasks at once.  [default: {THREADS_OF_TURNS} threads, {THREADS_OF_ALL} for all; {PROCESSES} processes]",
)
@click.option("--name", help="Name among the workers of this machine.  [default: the role, with a number of its own]")
@click.option("--events", is_flag=True, help="Report every task, for Flower.")
@click.option("--ready-file", type=click.Path(path_type=Path), help="Written when the worker is ready, for probes.")
def worker(
    *,
    role: str,
    queues: str | None,
    groups: str | None,
    reserved: bool,
    pool: str | None,
    concurrency: int | None,
    name: str | None,
    events: bool,
    ready_file: Path | None,
) -> None:
    """Start one worker. It ends on SIGTERM or Ctrl-C, and hands over what it has in hand."""
    settings = settings_for_cli()
    plan = plan_of(
        Role(role), settings, queues=queues, groups=groups, reserved=reserved, pool=pool, concurrency=concurrency,
        name=name, events=events,
    )  # fmt: skip
    if reserved and not settings.reserve:
        idle(ready_file, lambda told: say(f"chordage: {told}", err=True))
        return
    check(settings)
    run(settings, plan, ready_file)


def check(settings: Settings) -> None:
    """What no worker can do without is said in one line, and ends it. A broken agent is told: it alone has to wait."""
    from chordage.workers import checking
    from chordage.workers.bootstrap import redis_from
    from chordage.workers.cli.opened import check_ready

    for told in checking.faults_of_room(settings):
        say(f"chordage: {told}", err=True)
    redis_from(settings).close()  # says where Redis is to be set
    check_ready(settings)


def run(settings: Settings, plan: Plan, ready_file: Path | None = None) -> NoReturn:
    os.environ["REMAP_SIGTERM"] = "SIGQUIT"  # read by billiard when it is imported; see workers/fleet_worker.py
    from chordage.workers.app import make_app

    make_app(settings).Worker(plan=plan, ready_file=ready_file, loglevel=settings.log_level.upper(), quiet=True).start()
    raise AssertionError("a worker ends its process")
