"""`chordage run`: runtime loops and their workers, in the foreground."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from chordage.config.settings import LOOPS

F = TypeVar("F", bound=Callable[..., Any])


def fleet_options(command: F) -> F:
    """What `run` and `start` have in common."""
    for option in (
        click.option("--port", type=click.IntRange(0, 65535), help="Its port; 0 for any.  [default: 8630]"),
        click.option("--host", help="Where the HTTP server listens.  [default: 127.0.0.1]"),
        click.option("--no-workers", is_flag=True, help="The loops alone; workers run elsewhere, or later."),
        click.option(
            "--tools", type=click.IntRange(1, 16), default=2, show_default=True, help="Worker processes for tools."
        ),
        click.option(
            "--loop",
            "loops",
            type=click.Choice(LOOPS),
            multiple=True,
            help="Only these; may be given several times.  [default: all that have something to do]",
        ),
    ):
        command = option(command)
    return command


@click.command()
@fleet_options
@click.option("--ready-file", type=click.Path(path_type=Path), help="Written when all are ready, for probes.")
def run(
    *,
    loops: tuple[Any, ...],
    tools: int,
    no_workers: bool,
    host: str | None,
    port: int | None,
    ready_file: Path | None,
) -> None:
    """Run runtime loops and the workers for their turns, until Ctrl-C or SIGTERM.

    \b
    server  HTTP               hook   web hooks, by the same HTTP server
    poll    channels.toml      pulse  tasks, chores and will, by Celery beat

    Brings a Redis of its own where none is set. `chordage start` does the same in the background.
    """  # noqa: D301 - click's mark for lines that stay as they are
    from chordage.workers.cli import foreground
    from chordage.workers.fleet import roles

    settings = foreground.settings_of(host=host, port=port, asked=loops)
    members = roles.of_fleet(settings, tools=tools, with_workers=not no_workers)
    foreground.check(settings, members)
    foreground.hold(settings, members, command="run", ready_file=ready_file)
