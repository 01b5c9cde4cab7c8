"""`chordage beat`: Celery beat, which sends periodic work. Two of them at once do no harm."""

from __future__ import annotations

import click

from chordage.workers.fleet.fleet_file import settings_for_cli


@click.command()
def beat() -> None:
    """Start the clock that sends periodic work. Without it, workers sweep for themselves."""
    settings = settings_for_cli()

    from chordage.workers.app import make_app
    from chordage.workers.bootstrap import redis_from
    from chordage.workers.cli.opened import check_ready

    redis_from(settings).close()  # says where Redis is to be set
    check_ready(settings)
    make_app(settings).Beat(loglevel=settings.log_level, quiet=True).run()
