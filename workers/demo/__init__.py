"""A room to look at: an agent with a scripted model and four slow tools."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
QUESTION = "Plan a Saturday in Lisbon for two."


def files() -> list[Path]:
    return sorted(file for file in HERE.iterdir() if file.is_file() and file.name != Path(__file__).name)


def copy_to(folder: Path) -> None:
    """Put the room there. What is there already stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files():
        if not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)
