"""`chordage dev`: everything on this machine, in the foreground."""

from __future__ import annotations

import click

from chordage.config.settings import load


@click.command()
@click.option("--host", help="Where the HTTP server listens.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port.  [default: 8630]")
@click.option("--demo", "with_demo", is_flag=True, help="With the example room instead of this folder.")
@click.option("--tools", type=click.IntRange(1, 16), default=2, show_default=True, help="Worker processes for tools.")
def dev(host: str | None, port: int | None, with_demo: bool, tools: int) -> None:
    """Start everything on this machine: Redis, workers, beat and the HTTP server. Ctrl-C ends it.

    State lies in .chordage, so queued and running turns go on the next time. Other commands run in this folder find
    this fleet by themselves.
    """
    from chordage.workers.cli import foreground
    from chordage.workers.fleet import roles

    room = None
    if with_demo:
        from chordage.workers import demo

        room = load().state_path / "demo"
        demo.copy_to(room)
    settings = foreground.settings_of(host=host, port=port, asked=(), room=room)
    members = roles.of_fleet(settings, tools=tools, with_workers=True)
    foreground.check(settings, members)
    foreground.hold(settings, members, command="dev")
