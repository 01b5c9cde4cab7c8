"""`chordage flower`: Flower on our broker, with its own options passed on."""

from __future__ import annotations

import click

from chordage.workers.fleet.found import settings_for_cli


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

    check_redis(settings)
    make_app(settings, own_transport=False).start(["flower", f"--port={port}", f"--address={address}", *options])
