"""`chordage init`: a room to start from."""

from __future__ import annotations

from pathlib import Path

import click

from chordage.orchestrator.core.errors import Conflict
from chordage.workers.cli.output import say


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
def init(folder: Path) -> None:
    """Put an example room into FOLDER (this one, if not given), with everything explained that a room may hold.

    Its agent runs at once: its model answers from a file, and its tools ask nobody. All else is switched off.
    """
    from chordage.workers import example_room

    if taken := example_room.taken_in(folder):
        raise Conflict(
            f"{folder / taken[0]} is there already; nothing was touched: choose another folder, or move it away"
        )
    for name in example_room.copy_to(folder):
        say(f"  {(folder / name).as_posix():<24} {example_room.ROOM[name]}")
    say(NEXT.format(go="" if folder == Path() else f"cd {folder} && "))


NEXT = """
Next:
  {go}chordage dev
and in another terminal, in that folder:
  chordage submit "Plan a Saturday in Lisbon for two." --wait
  chordage check      names whatever is wrong, when you have changed something"""
