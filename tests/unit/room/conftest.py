"""A room of files that a test writes on the spot, gone from Python's memory afterwards."""

from __future__ import annotations

import sys

import pytest

from chordage.orchestrator.gateways.room.agents import Room

TOOLS = '''
from chordage import tool

@tool
def search(query: str) -> str:
    """Search the archive."""
    return query.upper()

@tool(effect="pure")
def count(text: str) -> int:
    return len(text)

def plain(text: str) -> str:
    return text

_hidden = search
'''


class Folder:
    def __init__(self, path):
        self.path = path

    def write(self, name, text):
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def agent(self, text='model = "m"\n', name="agent.toml"):
        return self.write(name, text)

    def open(self, **options):
        return Room(self.path, look_again=0, **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    room = tmp_path / "room"
    room.mkdir()
    yield Folder(room)
    for name in set(sys.modules) - before:
        if str(room) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def tools_file(folder):
    return folder.write("my_tools.py", TOOLS)
