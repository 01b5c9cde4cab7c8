"""`chordage poll`: the poll loop. Several at once do no harm: each binding is looked at by one of them."""

from __future__ import annotations

import click


@click.command()
def poll() -> None:
    """Fetch messages from the channels of channels.toml, until Ctrl-C or SIGTERM. Workers carry the turns out."""
    from chordage.workers.bootstrap import redis_from
    from chordage.workers.cli.opened import check_ready
    from chordage.workers.fleet.fleet_file import settings_for_cli

    settings = settings_for_cli()
    redis_from(settings).close()  # says where Redis is to be set
    check_ready(settings)

    from chordage.config import log
    from chordage.workers.poll import run

    log.configure(settings.log_level, settings.log_format)
    run(settings)
