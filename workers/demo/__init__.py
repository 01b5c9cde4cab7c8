"""A room to look at: an agent with a scripted model and four slow tools."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
ROOM = ("agent.toml", "day_out.py", "script.yaml")
QUESTION = "Plan a Saturday in Lisbon for two."


def copy_to(folder: Path) -> None:
    """Put the room there. What is there already stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ROOM:
        if not (folder / name).exists():
            shutil.copyfile(HERE / name, folder / name)
