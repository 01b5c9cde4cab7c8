"""`chordage init`: a room to start from."""

from __future__ import annotations

from pathlib import Path

import click

from chordage.orchestrator.core.errors import Conflict
from chordage.workers.cli.output import say


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
def init(folder: Path) -> None:
    """Write an example room into FOLDER (by default this one). Its files explain everything a room may contain.

    Its agent works at once: its model answers from a file, and its tools need no approval. Everything else is off.
    """
    from chordage.workers import example_room

    if existing := example_room.existing_in(folder):
        raise Conflict(
            f"{folder / existing[0]} is there already; nothing was changed: choose another folder, or move it away"
        )
    for name in example_room.copy_to(folder):
        say(f"  {(folder / name).as_posix():<24} {example_room.ROOM[name]}")
    say(NEXT.format(go="" if folder == Path() else f"cd {folder} && "))


NEXT = """
Next:
  {go}chordage dev
and in another terminal, in that folder:
  chordage submit "Plan a Saturday in Lisbon for two." --wait
  chordage check      lists what is wrong, after you have changed something"""
