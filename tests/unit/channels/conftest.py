"""Bindings as a room has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chordage.orchestrator.gateways.channels.room_channels import RoomChannels


@pytest.fixture
def room(tmp_path: Path) -> Path:
    folder = tmp_path / "room"
    folder.mkdir()
    return folder


@pytest.fixture
def written(room: Path) -> Iterator[Callable[..., RoomChannels]]:
    """`written(text, TOKEN="1")`: the channels of a room with that channels.toml, in that environment."""
    made: list[RoomChannels] = []

    def write(text: str, **environ: str) -> RoomChannels:
        (room / "channels.toml").write_text(text)
        made.append(RoomChannels(room, environ=environ))
        return made[-1]

    yield write
    for channels in made:
        channels.close()


@pytest.fixture
def bound(written: Callable[..., RoomChannels]) -> Callable[..., Any]:
    """`bound("imap", host="…")`: the channel of that plugin."""

    def bind(plugin: str, **config: Any) -> Any:
        lines = [f"{key} = {_toml(value)}" for key, value in config.items()]
        text = "\n".join([f'[channels.it]\nplugin = "{plugin}"\n[channels.it.config]', *lines])
        return written(text).get("it")

    return bind


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)
