"""`chordage worker`, `web`, `poll`, `beat` and `flower`: one process of a fleet each, for a supervisor to run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from errno import EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.hosts import is_loopback
from chordage.workers import worker_plan
from chordage.workers.cli.context import check_keys, check_ready_with_redis
from chordage.workers.cli.output import say
from chordage.workers.fleet.fleet_file import settings_for_cli

if TYPE_CHECKING:
    from celery import Celery

    from chordage.config.settings import Settings

FLOWER_COLUMNS = "name,args,kwargs,state,received,runtime,worker"  # Flower's default hides thread, agent and tool


@click.command(params=[*worker_plan.worker_options()])
@click.option(
    "--queues", metavar="NAMES", help="Only these queues, first served first: chat,task or chore.tools,will.tools."
)
@click.option(
    "--pool",
    type=click.Choice([pool.value for pool in worker_plan.Pool]),
    help="threads, or prefork for processes.  [default: by role]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help=f"Tasks at once.  [default: {worker_plan.THREADS_OF_TURNS} threads, {worker_plan.THREADS_OF_ALL} for all; "
    f"{worker_plan.PROCESSES} processes]",
)
@click.option("--name", help="Name among the workers of this machine.  [default: the role, with a number of its own]")
@click.option("--events", is_flag=True, help="Report every task, for Flower.")
def worker(*, role: str, reserved: bool, ready_file: Path | None, **options: Any) -> None:
    """Start one worker. It ends on SIGTERM or Ctrl-C, and hands its unfinished work over."""
    settings = settings_for_cli()
    plan = worker_plan.plan_of(worker_plan.WorkerRole(role), settings, reserved=reserved, **options)
    if reserved and not settings.reserve:
        worker_plan.wait_without_reserve(ready_file, lambda text: say(f"chordage: {text}", err=True))
        return
    from chordage.workers import room_check

    for fault in room_check.faults_of_room(settings):  # a broken agent stops no worker: only its own work waits
        say(f"chordage: {fault}", err=True)
    check_ready_with_redis(settings)
    run_worker(settings, plan, ready_file)


def run_worker(settings: Settings, plan: worker_plan.WorkerPlan, ready_file: Path | None = None) -> NoReturn:
    os.environ["REMAP_SIGTERM"] = "SIGQUIT"  # read by billiard when it is imported; see workers/worker.py
    from chordage.workers.app import make_app

    make_app(settings).Worker(plan=plan, ready_file=ready_file, loglevel=settings.log_level.upper(), quiet=True).start()
    raise AssertionError("a worker ends its process")


@click.command()
@click.option("--host", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="On which port; 0 for any.  [default: 8630]")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Server processes.")
def web(host: str | None, port: int | None, processes: int) -> None:
    """Start the HTTP server. It accepts messages and shows turns; workers run the turns."""
    from chordage.config.settings import variable_of
    from chordage.orchestrator.loops import server
    from chordage.workers.fleet import roles
    from chordage.workers.fleet.member import free_port

    settings = settings_for_cli(host=host, port=port)
    check_ready_with_redis(settings)
    check_keys(settings)
    if settings.port == 0:
        settings = settings_for_cli(host=host, port=free_port(settings.host))
        say(f"chordage: HTTP on {roles.web(settings.host, settings.port).url}", err=True)

    os.environ[variable_of(("host",))] = settings.host  # for the processes of uvicorn, each of which makes the app
    import uvicorn

    server.allow_open_files()
    uvicorn.run(
        "chordage.workers.web:make_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=processes,
        log_config=None,
        http=server.Connection,
        ws="none",
        backlog=server.BACKLOG,
        timeout_graceful_shutdown=2,
        timeout_worker_healthcheck=server.SILENT_SECONDS,
    )


@click.command()
def poll() -> None:
    """Fetch messages from the channels of channels.toml, until Ctrl-C or SIGTERM. Workers run the turns.

    Several may run at once: each channel is polled by one of them.
    """
    settings = settings_for_cli()
    check_ready_with_redis(settings)

    from chordage.config import log
    from chordage.workers.poll import run

    log.configure(settings.log_level, settings.log_format)
    run(settings)


@click.command()
def beat() -> None:
    """Start the scheduler of periodic work. Without it, workers sweep by themselves. Several may run at once."""
    settings = settings_for_cli()

    from chordage.workers.app import make_app

    check_ready_with_redis(settings)
    make_app(settings).Beat(loglevel=settings.log_level, quiet=True).run()


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--port", type=click.IntRange(1, 65535), default=5555, show_default=True)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 for everywhere.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def flower(port: int, address: str, options: tuple[str, ...]) -> None:
    """Start Flower, a web page that monitors the workers. It asks them for events by itself.

    OPTIONS are Flower's own, such as --basic-auth=name:password or --url-prefix=flower.
    """
    settings = settings_for_cli()

    from chordage.workers.app import make_app
    from chordage.workers.bootstrap import check_redis

    refuse_open_flower(address, options)
    check_redis(settings)
    ours = (f"--port={port}", f"--address={address}", f"--tasks-columns={FLOWER_COLUMNS}")
    # An option that is given twice has its last value.
    serve_flower(make_app(settings, own_transport=False), (*ours, *options), f"{address}:{port}")


def refuse_open_flower(address: str, arguments: tuple[str, ...]) -> None:
    """Flower shows threads and ids, and can stop workers, without asking who is there. Its own reading of its options
    decides: they may also be variables FLOWER_…, or in flowerconfig.py.
    """
    from flower.command import apply_env_options, apply_options, options

    apply_env_options()
    apply_options("flower", [f"--address={address}", *arguments])
    if options.unix_socket or options.basic_auth or options.auth or is_loopback(options.address):
        return
    raise ConfigError(
        f"Flower would be open to everyone who reaches {options.address or 'this machine'}, and can stop workers: give "
        "--basic-auth=name:password (or FLOWER_BASIC_AUTH, or --auth with a provider), or leave --address out"
    )


def serve_flower(app: Celery, options: Sequence[str], place: str) -> None:
    try:
        app.start(["flower", *options])
    except OSError as error:
        if error.errno != EADDRINUSE:
            raise
        raise ConfigError(f"{place} is in use: choose another port with --port") from error
