"""`chordage flower`: Flower on our broker, with its own options passed on."""

from __future__ import annotations

from errno import EADDRINUSE
from ipaddress import ip_address
from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.errors import ConfigError
from chordage.workers.fleet.fleet_file import settings_for_cli

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery

COLUMNS = "name,args,kwargs,state,received,runtime,worker"  # Flower leaves out what says thread, agent and tool
LOOPBACK = frozenset({"localhost", "ip6-localhost"})


def refuse_the_unguarded(address: str, given: tuple[str, ...]) -> None:
    """Flower shows threads and ids to whoever asks, and can stop workers. Its own reading of its options decides: they
    may also be variables FLOWER_…, or in flowerconfig.py.
    """
    from flower.command import apply_env_options, apply_options, options

    apply_env_options()
    apply_options("flower", [f"--address={address}", *given])
    if options.unix_socket or options.basic_auth or options.auth or _is_loopback(options.address):
        return
    raise ConfigError(
        f"Flower would be open to everyone who reaches {options.address or 'this machine'}, and can stop workers: give "
        "--basic-auth=name:password (or FLOWER_BASIC_AUTH, or --auth with a provider), or leave --address out"
    )


def _is_loopback(address: str) -> bool:
    if address in LOOPBACK:
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:  # a name, or nothing: then it listens everywhere
        return False


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--port", type=click.IntRange(1, 65535), default=5555, show_default=True)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 for everywhere.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def flower(port: int, address: str, options: tuple[str, ...]) -> None:
    """Start Flower, a web page that watches the workers. It asks them for events by itself.

    OPTIONS are Flower's own, such as --basic-auth=name:password or --url-prefix=flower.
    """
    settings = settings_for_cli()

    from chordage.workers.app import make_app
    from chordage.workers.bootstrap import check_redis

    refuse_the_unguarded(address, options)
    check_redis(settings)
    given = (f"--port={port}", f"--address={address}", f"--tasks-columns={COLUMNS}", *options)  # the last one counts
    serve(make_app(settings, own_transport=False), given, f"{address}:{port}")


def serve(app: Celery, given: Sequence[str], place: str) -> None:
    try:
        app.start(["flower", *given])
    except OSError as error:
        if error.errno != EADDRINUSE:
            raise
        raise ConfigError(f"{place} is in use: choose another port with --port") from error
