"""`chordage init`: a room to start from."""

from __future__ import annotations

from pathlib import Path

import click

from chordage.orchestrator.core.errors import Conflict


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
def init(folder: Path) -> None:
    """Put an example room into FOLDER (this one, if not given): an agent, its tools, and a scripted model."""
    from chordage.workers import demo

    if taken := [name for name in demo.ROOM if (folder / name).exists()]:
        raise Conflict(
            f"{folder / taken[0]} is there already; it was not touched: choose another folder, or move it away"
        )
    demo.copy_to(folder)
    for name in demo.ROOM:
        click.echo(f"  {folder / name}")
    where = "" if folder == Path() else f"cd {folder} && "
    click.echo(f"\nNow run `{where}chordage dev`, and change what agent.toml says.")
