"""`fleet.json` in the state directory: the addresses of the fleet that runs here, for other commands to work with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chordage.config.settings import Settings, load
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.system import private_files
from chordage.workers.fleet import state_lock

FILE = "fleet.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetAddresses:
    pid: int
    room: str
    redis_url: str
    database_url: str
    http_port: int | None = None
    valkey_port: int | None = None  # of its own broker; None where it uses another Redis


def settings_for_cli(**options: Any) -> Settings:
    """The settings of this folder. Where they name no Redis and a fleet runs here, those of that fleet."""
    settings = load(**options)
    if settings.redis is not None:
        return settings
    fleet = running_in(settings.state_path)
    return settings if fleet is None else load(**{**_from_fleet(settings, fleet), **options})


def _from_fleet(settings: Settings, fleet: FleetAddresses) -> dict[str, Any]:
    values: dict[str, Any] = {
        "redis_url": fleet.redis_url,
        "room": Path(fleet.room),
        "state": settings.state_path,
    }
    if settings.database_url is None:
        values["database_url"] = fleet.database_url
    if fleet.http_port is not None:
        values["port"] = fleet.http_port
    return values


def running_in(state: Path) -> FleetAddresses | None:
    """The fleet that runs on this state directory. None also while the reaper of a killed fleet is at work, and until a
    new fleet has written its file.
    """
    pid = state_lock.fleet_pid(state)
    fleet = None if pid is None else last_in(state)
    return fleet if fleet is not None and fleet.pid == pid else None


def last_in(state: Path) -> FleetAddresses | None:
    """The last fleet that ran here, whether or not it still does."""
    try:
        text = (state / FILE).read_text()
    except FileNotFoundError:
        return None
    try:
        return FleetAddresses(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{state / FILE} cannot be read ({error}): delete it, and start the fleet again") from error


def write(state: Path, fleet: FleetAddresses) -> None:
    """Whole or not at all, and readable by its owner only: URLs hold passwords."""
    private_files.write(state / FILE, json.dumps(asdict(fleet), indent=2) + "\n")
