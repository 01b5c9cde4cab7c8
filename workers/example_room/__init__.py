"""The room that `chordage init` writes: the agent of the demo, in files that explain everything a room may contain."""

from __future__ import annotations

import shutil
from pathlib import Path

from chordage.workers import demo

FILES = Path(__file__).parent / "files"
IGNORE = ".gitignore"
# In reading order, each with its purpose. The last one is left as it is if it exists.
ROOM = {
    "agent.toml": "the agent: model, instructions, tools, limits",
    "day_out.py": "its tools, plain Python functions",
    "script.yaml": "what its model answers, until you name a real one",
    "channels.toml": "where messages are fetched, and replies sent",
    "hooks.toml": "what other services may post",
    "tasks/example.md": "a task; paused",
    "chores/weather.md": "something to do again and again; paused",
    "will.md": "what to do when there is nothing else; paused",
    IGNORE: "what runs here leaves behind",
}
_ELSEWHERE = {
    "day_out.py": demo.HERE / "day_out.py",
    "script.yaml": demo.HERE / "script.yaml",
    IGNORE: FILES / "gitignore",  # under its own name it would apply to this folder
}


def source_of(name: str) -> Path:
    return _ELSEWHERE.get(name, FILES / name)


def existing_in(folder: Path) -> list[str]:
    """The files that would be overwritten."""
    return [name for name in ROOM if name != IGNORE and (folder / name).exists()]


def copy_to(folder: Path) -> list[str]:
    """Write the room, without overwriting. Returns the names of the written files."""
    written = [name for name in ROOM if not (folder / name).exists()]
    for name in written:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source_of(name), target)
    return written
