"""What is wrong with a room and its settings, all of it at once. Connects to nothing, and starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chordage.config import settings as config
from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import ConfigError, RoomError, UserError
from chordage.orchestrator.gateways.channels import room_channels
from chordage.orchestrator.gateways.room.reading import agent_files
from chordage.orchestrator.gateways.schedules import room_work
from chordage.orchestrator.gateways.webhooks import file as hooks
from chordage.workers import team_app
from chordage.workers.bootstrap import room_from
from chordage.workers.checking import of_agents, of_settings
from chordage.workers.checking.looked import PLACE, Looked

NO_AGENT = """{folder} holds no agent: there is no agent.toml. Any of these helps:
  chordage init         puts an example room here
  chordage dev --demo   runs that example without leaving files of it here
or write an agent.toml like this:
  name = "helper"
  model = "openai:gpt-4o-mini"    # and set OPENAI_API_KEY
  instructions = "You are helpful and brief.\""""

Checker = Callable[[Path, Mapping[str, str]], Sequence[RoomError]]

# What else belongs to a room: its name, and what finds all that is wrong with it.
FURTHER: list[tuple[str, Checker]] = [
    ("hooks", hooks.faults),
    ("channels", room_channels.faults),
    ("pulse", lambda room, _environ: room_work.faults(room)),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    kind: str
    told: str

    @property
    def file(self) -> str | None:
        place = PLACE.match(self.told)
        return place["file"] if place else None

    @property
    def line(self) -> int | None:
        place = PLACE.match(self.told)
        return int(place["line"]) if place else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    room: Path
    looked_at: tuple[Looked, ...]

    @property
    def faults(self) -> list[Fault]:
        """Each once: two agents may name the same tool, script or model."""
        return [Fault(kind=kind, told=told) for told, kind in _once(self.looked_at, "faults").items()]

    @property
    def remarks(self) -> list[Fault]:
        """What the room runs without."""
        faults = {fault.told for fault in self.faults}
        found = _once(self.looked_at, "remarks").items()
        return [Fault(kind=kind, told=told) for told, kind in found if told not in faults]


def _once(looked: Sequence[Looked], what: str) -> dict[str, str]:
    """What is told, in its order, with the kind that told it first."""
    found: dict[str, str] = {}
    for look in looked:
        for told in getattr(look, what):
            found.setdefault(told, look.kind)
    return found


def check(*, live: bool = False) -> Checked:
    """`live`: MCP servers are connected to."""
    environ = config.environment()
    of_all, settings = of_settings.look()
    room = settings.room_path
    of_all = replace(of_all, faults=[*of_all.faults, *_of_the_project(settings)])
    found = [of_all, *of_agents.look(room, environ, time_limit=settings.tool_time_limit, live=live)]
    found += [_further(kind, checker, room, environ) for kind, checker in FURTHER]
    return Checked(room=room, looked_at=tuple(found))


def _of_the_project(settings: Settings) -> Iterator[str]:
    """What settings name of the team's own code, imported before any tool is, as a worker does it."""
    checks: list[Callable[[Settings], None]] = [team_app.make_current]
    if settings.around_tools:
        checks.append(lambda given: room_from(given).check_around())
    for look in checks:
        try:
            look(settings)
        except UserError as error:
            yield str(error)


def faults_of_room(settings: Settings) -> list[str]:
    """What is skipped because it is broken, while everything else goes on. Raises ConfigError where the room has no
    agent file, and where something that a setting names cannot be used: no agent could do without it.
    """
    environ, room = config.environment(), settings.room_path
    if not agent_files(room):
        raise ConfigError(NO_AGENT.format(folder=room))
    team_app.make_current(settings)
    room_from(settings).check_around()
    agents = of_agents.look(room, environ, time_limit=settings.tool_time_limit)
    return [
        *config.unknown_variables(),
        *_once([*agents, *(_further(*one, room, environ) for one in FURTHER)], "faults"),
    ]


def _further(kind: str, checker: Checker, room: Path, environ: Mapping[str, str]) -> Looked:
    try:
        faults: Sequence[UserError] = checker(room, environ)
    except UserError as error:
        faults = [error]
    return Looked(kind=kind, what="no faults", faults=[line for fault in faults for line in str(fault).splitlines()])
