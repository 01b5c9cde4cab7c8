"""The smallest room: an agent that answers. It has no Python of its own, so one process may load any number of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from chordage.workers import room_check


def write_room(folder: Path) -> None:
    (folder / "agent.toml").write_text('model = "scripted:script.yaml"\n')
    (folder / "script.yaml").write_text('- text: "You said: {user}"\n')


def forget_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the user who runs the tests reaches what is tested."""
    for name in [name for name in os.environ if name.startswith("CHORDAGE_")]:
        monkeypatch.delenv(name)


def agent_faults(room: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """What `chordage check` says of agents, tools and MCP servers. The models of a test may be anything."""
    sections = room_check.agent_sections(room, environ or {}, time_limit=900)
    return [fault for section in sections if section.kind != "models" for fault in section.faults]
