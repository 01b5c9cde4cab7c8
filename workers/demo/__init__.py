"""The room of `chordage demo`: an agent with a scripted model and four slow tools."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
ROOM = ("agent.toml", "day_out.py", "script.yaml")
QUESTION = "Plan a Saturday in Lisbon for two."


def copy_to(folder: Path) -> None:
    """Write the room, without overwriting."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ROOM:
        if not (folder / name).exists():
            shutil.copyfile(HERE / name, folder / name)
