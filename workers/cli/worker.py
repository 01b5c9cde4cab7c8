"""`chordage worker`: one Celery worker, in this process."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from chordage.config.settings import Settings
from chordage.orchestrator import private_files
from chordage.workers.cli.output import say
from chordage.workers.cli.reserved import idle
from chordage.workers.cli.worker_plan import (
    PROCESSES,
    THREADS_OF_ALL,
    THREADS_OF_TURNS,
    Plan,
    Pool,
    Role,
    plan_of,
)
from chordage.workers.fleet.found import settings_for_cli


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
@click.option("--name", help="Name among the workers of this machine.  [default: the role]")
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
        idle(ready_file)
        return
    _check(settings)
    run(settings, plan, ready_file)


def _check(settings: Settings) -> None:
    """What no worker can do without is said in one line, and ends it. A broken agent is told: it alone has to wait."""
    from chordage.workers import checking
    from chordage.workers.bootstrap import redis_from
    from chordage.workers.cli.opened import check_ready

    for told in checking.faults_of_room(settings):
        say(f"chordage: {told}", err=True)
    redis_from(settings).close()  # says where Redis is to be set
    check_ready(settings)


def run(settings: Settings, plan: Plan, ready_file: Path | None = None) -> NoReturn:
    # Read by billiard when it is imported: the children of a prefork pool then leave SIGTERM to their parent, also
    # where a supervisor sends it to every process of a service.
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
            private_files.write(ready_file, f"{os.getpid()}\n")

    process = app.Worker(**_options(settings, plan))
    process.start()
    end_at_once(process.exitcode)


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


def end_at_once(code: int | None) -> NoReturn:
    """Python would wait for every thread that is still in a tool; what they do is back in its queue by now."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
