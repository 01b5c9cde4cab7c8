"""The smallest room: an agent that answers. It has no Python of its own, so one process may load any number of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def write_room(folder: Path) -> None:
    (folder / "agent.toml").write_text('model = "scripted:script.yaml"\n')
    (folder / "script.yaml").write_text('- text: "You said: {user}"\n')


def forget_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of whoever runs the tests reaches what is tested."""
    for name in [name for name in os.environ if name.startswith("CHORDAGE_")]:
        monkeypatch.delenv(name)
