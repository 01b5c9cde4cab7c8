"""`chordage web`: the HTTP server."""

from __future__ import annotations

import os

import click

from chordage.workers.cli.output import say, tell_if_open


@click.command()
@click.option("--host", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="On which port; 0: one that is free.  [default: 8630]")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True)
def web(host: str | None, port: int | None, processes: int) -> None:
    """Start the HTTP server. It takes messages in and shows turns; workers carry them out."""
    from chordage.config.settings import variable_of
    from chordage.orchestrator.loops import server
    from chordage.workers.bootstrap import redis_from
    from chordage.workers.cli.opened import check_ready
    from chordage.workers.fleet import roles
    from chordage.workers.fleet.fleet_file import settings_for_cli
    from chordage.workers.fleet.member import free_port

    settings = settings_for_cli(host=host, port=port)
    os.environ[variable_of(("host",))] = settings.host  # for the processes of uvicorn, which make the app themselves
    tell_if_open(settings.host)
    redis_from(settings).close()  # says where Redis is to be set
    check_ready(settings)
    if settings.port == 0:
        settings = settings_for_cli(host=host, port=free_port(settings.host))
        say(f"chordage: HTTP on {roles.web(settings.host, settings.port).url}", err=True)

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
    )
