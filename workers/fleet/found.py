"""The fleet that `chordage dev`, `run` or `start` runs here, as other commands find it: by its state directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chordage.config.settings import Settings, load
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.system import private_files
from chordage.workers.fleet import fleet_lock

FILE = "fleet.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Where the parts of a fleet are."""

    pid: int
    room: str
    redis_url: str
    database_url: str
    http_port: int | None = None
    valkey_port: int | None = None  # of its own broker; None where it uses somebody else's


def settings_for_cli(**given: Any) -> Settings:
    """The settings of this folder. Where they name no Redis and a fleet runs here, that fleet's."""
    settings = load(**given)
    if settings.redis is not None:
        return settings
    fleet = running_in(settings.state_path)
    return settings if fleet is None else load(**{**_of_fleet(settings, fleet), **given})


def _of_fleet(settings: Settings, fleet: Found) -> dict[str, Any]:
    found: dict[str, Any] = {
        "redis_url": fleet.redis_url,
        "room": Path(fleet.room),
        "state": settings.state_path,
    }
    if settings.database_url is None:
        found["database_url"] = fleet.database_url
    if fleet.http_port is not None:
        found["port"] = fleet.http_port
    return found


def running_in(state: Path) -> Found | None:
    """The fleet that runs on this state directory. One that was killed and is being cleaned up is none any more, and
    one that has not said yet where it is, none so far.
    """
    pid = fleet_lock.holder(state)
    fleet = None if pid is None else last_in(state)
    return fleet if fleet is not None and fleet.pid == pid else None


def last_in(state: Path) -> Found | None:
    """The fleet that was the last to run here, whether or not it still does."""
    try:
        text = (state / FILE).read_text()
    except FileNotFoundError:
        return None
    try:
        return Found(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{state / FILE} cannot be read ({error}): delete it, and start the fleet again") from error


def leave(state: Path, fleet: Found) -> None:
    """Written whole or not at all, and readable by nobody else: URLs hold passwords."""
    private_files.write(state / FILE, json.dumps(asdict(fleet), indent=2) + "\n")
