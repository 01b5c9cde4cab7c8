"""`chordage web`: the HTTP server."""

from __future__ import annotations

import click


@click.command()
@click.option("--host", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="On which port.  [default: 8630]")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True)
def web(host: str | None, port: int | None, processes: int) -> None:
    """Start the HTTP server. It takes messages in and shows turns; workers carry them out."""
    from chordage.workers.bootstrap import redis_from
    from chordage.workers.cli.opened import check_ready
    from chordage.workers.fleet.found import settings_for_cli

    settings = settings_for_cli(host=host, port=port)
    redis_from(settings).close()  # says where Redis is to be set
    check_ready(settings)

    import uvicorn

    uvicorn.run(
        "chordage.workers.web:make_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=processes,
        log_config=None,
        timeout_graceful_shutdown=2,
    )
