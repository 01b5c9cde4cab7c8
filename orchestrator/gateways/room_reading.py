"""All agent files of a room as they were at one moment, and how to see that they have changed since."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways import room_file
from chordage.orchestrator.gateways.room_copies import Copies
from chordage.orchestrator.gateways.room_file import AgentFile
from chordage.orchestrator.gateways.room_trace import Traces, trace_of

DEFAULT = "agent.toml"
STRATEGIES = ("direct", "react", "plan_execute")  # of whoever asks for names alone


@dataclass(frozen=True, kw_only=True, slots=True)
class RoomReading:
    files: tuple[AgentFile, ...]
    traces: Traces

    def default(self) -> AgentFile | None:
        """agent.toml, or the only one there is."""
        first = next((file for file in self.files if file.source.name == DEFAULT), None)
        return self.files[0] if first is None and len(self.files) == 1 else first

    def named(self, name: str) -> AgentFile | None:
        """A file that can be used comes before a broken one of the same name."""
        found = [file for file in self.files if file.name == name]
        return min(found, key=lambda file: file.spec is None, default=None)

    def with_last_good(
        self, before: RoomReading | None, room: Path, strategies: Collection[str], copies: Copies | None
    ) -> RoomReading:
        """The same, where a broken file serves with its last good version: that of `before`, else that of its copy."""
        taken = {file.name for file in self.files if file.spec}
        files: list[AgentFile] = []
        for file in self.files:
            good = None if file.spec else _last_good(file, before, room, strategies, copies)
            if good is None or good.name in taken:
                files.append(file)
                continue
            taken.add(good.name)
            files.append(replace(file, name=good.name, spec=good.spec, providers=good.providers, servers=good.servers))
        return replace(self, files=tuple(files))

    def is_outdated(self, room: Path) -> bool:
        reads = [path for file in self.files for path in file.reads]
        return self.traces != {path: trace_of(path) for path in [*agent_files(room), *reads]}


def _last_good(
    file: AgentFile, before: RoomReading | None, room: Path, strategies: Collection[str], copies: Copies | None
) -> AgentFile | None:
    name = file.source.name
    earlier = next((one for one in before.files if one.source.name == name and one.spec), None) if before else None
    if earlier is not None:
        return earlier
    copy = copies.path_of(name) if copies else None
    found = room_file.read(room / name, room, strategies, copy=copy) if copy else None
    return found if found and found.spec else None


def agent_files(room: Path) -> list[Path]:
    first = room / DEFAULT
    return [*([first] if first.exists() else []), *sorted((room / "agents").glob("*.toml"))]


def known_agents(room: Path) -> list[str]:
    """Also those of files that are broken: each is a fault of its own, and may well be the one that is meant."""
    return sorted({room_file.read(path, room, STRATEGIES).name for path in agent_files(room)})


def no_such_agent(name: str | None, known: Collection[str]) -> str | None:
    """Why an agent that something else of the room names cannot be meant."""
    if name is None or name in known:
        return None
    return f"there is no agent {name!r}; there are: {', '.join(known) or 'none'}"


def read_room(room: Path, strategies: Collection[str]) -> RoomReading:
    traces = {path: trace_of(path) for path in agent_files(room)}  # first: what changes while we read is then seen
    files: list[AgentFile] = []
    for path in traces:
        files.append(_without_clash(room_file.read(path, room, strategies), files))
    for file in files:
        traces = file.reads | traces
    return RoomReading(files=tuple(files), traces=traces)


def _without_clash(file: AgentFile, earlier: list[AgentFile]) -> AgentFile:
    """The same, or a fault, when it takes a name that an earlier file has."""
    if file.spec is None:
        return file
    for other in earlier:
        if other.spec and other.name == file.name:
            return _faulty(
                file, ("name",), f"{file.name!r} is the name of the agent in {other.source.name} already; rename one"
            )
        for provider in file.providers.keys() & other.providers.keys():
            if file.providers[provider] != other.providers[provider]:
                path = ("models", provider)
                return _faulty(file, path, f"is described differently in {other.source.name}; keep one of the two")
    return file


def _faulty(file: AgentFile, path: tuple[str, ...], why: str) -> AgentFile:
    file.source.complain(path, why)
    return replace(file, spec=None, providers={}, servers=(), fault=RoomError("\n".join(file.source.problems)))
