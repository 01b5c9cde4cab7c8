"""All agent files of a room as they were at one moment, and the last good version of those that are broken.

A process keeps the last good version of a definition in memory. One that starts while a file is broken has none: it
reads the copy that another process of this machine has made in the state folder of the fleet. A copy is replaced as a
whole, so that a process that dies while it writes leaves the copy before. Where the folder cannot be written there are
no copies, and a process that starts while a file is broken cannot use its agent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from chordage.orchestrator.core.prices import PriceList
from chordage.orchestrator.gateways.room import agent_file
from chordage.orchestrator.gateways.room.agent_file import AgentFile
from chordage.orchestrator.gateways.room.files import KeyPath, Stamps, stamp_of
from chordage.orchestrator.system import private_files

log = structlog.get_logger()

DEFAULT = "agent.toml"
STRATEGIES = ("direct", "react", "plan_execute")  # for those who need names alone


class Copies:
    """Of agent files as they were when they could last be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path_of(self, name: str) -> Path | None:
        """The copy of the file that the room calls `name`, if there is one."""
        path = self._folder / name
        return path if path.is_file() else None

    def keep(self, texts: Mapping[str, str], present: Collection[str]) -> None:
        """`texts`: files that can be read, by name. A file that is not `present` any more loses its copy."""
        try:
            for name, text in texts.items():
                self._write(self._folder / name, text)
            for path in self._folder.rglob("*.toml"):
                if path.relative_to(self._folder).as_posix() not in present:
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.info("agent files are not copied", folder=str(self._folder), error=str(error))

    @staticmethod
    def _write(path: Path, text: str) -> None:
        with suppress(OSError, UnicodeDecodeError):
            if path.read_text(encoding="utf-8") == text:
                return
        private_files.folder(path.parent)
        private_files.write(path, text)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoomReading:
    files: tuple[AgentFile, ...]
    stamps: Stamps

    def prices(self) -> PriceList:
        """Of every file that can be read: what a model costs does not depend on who asks it."""
        return {model: prices for file in self.files for model, prices in file.prices.items()}

    def default(self) -> AgentFile | None:
        """agent.toml, or the only one there is."""
        first = next((file for file in self.files if file.source.name == DEFAULT), None)
        return self.files[0] if first is None and len(self.files) == 1 else first

    def named(self, name: str | None) -> AgentFile | None:
        """None for the default. A file that can be used comes before a broken one of the same name."""
        if name is None:
            return self.default()
        broken = None
        for file in self.files:
            if file.name == name:
                if file.spec:
                    return file
                broken = broken or file
        return broken

    def with_last_good(
        self, before: RoomReading | None, room: Path, strategies: Collection[str], copies: Copies | None
    ) -> RoomReading:
        """The same, where a broken file serves with its last good version: that of `before`, else that of its copy."""
        earlier = {file.source.name: file for file in before.files if file.spec} if before else {}
        taken = {file.name for file in self.files if file.spec}
        files: list[AgentFile] = []
        for file in self.files:
            name = file.source.name
            good = None if file.spec else earlier.get(name)
            if file.spec is None and good is None and copies is not None and (copy := copies.path_of(name)):
                good = agent_file.read(room / name, room, strategies, copy=copy)
            if good is None or good.spec is None or good.name in taken:
                files.append(file)
                continue
            taken.add(good.name)
            kept = {name: getattr(good, name) for name in ("name", "spec", "providers", "servers", "prices", "budgets")}
            files.append(replace(file, **kept))
        return replace(self, files=tuple(files))

    def is_outdated(self, room: Path) -> bool:
        reads = [path for file in self.files for path in file.reads]
        return self.stamps != {path: stamp_of(path) for path in [*agent_files(room), *reads]}


def agent_files(room: Path) -> list[Path]:
    first = room / DEFAULT
    return [*([first] if first.exists() else []), *sorted((room / "agents").glob("*.toml"))]


def known_agents(room: Path) -> list[str]:
    """Also those of broken files: each is a fault of its own, and may well be the one that is meant."""
    return sorted({agent_file.read(path, room, STRATEGIES).name for path in agent_files(room)})


def no_such_agent(name: str | None, known: Collection[str]) -> str | None:
    """Why an agent that another file of the room names cannot be meant."""
    if name is None or name in known:
        return None
    return f"there is no agent {name!r}; there are: {', '.join(known) or 'none'}"


def read_room(room: Path, strategies: Collection[str]) -> RoomReading:
    stamps = {path: stamp_of(path) for path in agent_files(room)}  # before they are read, to notice later changes
    names: dict[str, AgentFile] = {}
    providers: dict[str, AgentFile] = {}
    priced: dict[str, AgentFile] = {}
    files: list[AgentFile] = []
    for path in stamps:
        file = agent_file.read(path, room, strategies)
        if (clash := _clash(file, names, providers, priced)) is not None:
            file = _broken(file, *clash)
        if file.spec is not None:
            names[file.name] = file
            providers |= {provider: file for provider in file.providers if provider not in providers}
            priced |= {model: file for model in file.prices if model not in priced}
        files.append(file)
    files = [_with_price(file, priced) for file in files]
    reads = {path: stamp for file in files for path, stamp in file.reads.items()}
    return RoomReading(files=tuple(files), stamps=reads | stamps)


def _broken(file: AgentFile, place: KeyPath, why: str) -> AgentFile:
    file.source.complain(place, why)
    return replace(file, spec=None, providers={}, servers=(), prices={}, fault=file.source.error)


def _with_price(file: AgentFile, priced: Collection[str]) -> AgentFile:
    """A budget of cost needs the price of every model that may be asked: otherwise it would never be reached."""
    missing = [model for model in file.spec.named_models if model not in priced] if file.spec else []
    if not missing or not file.budgets:
        return file
    why = f"{', '.join(missing)} has no price; add [prices] to agent.toml, or price_per_million here"
    return _broken(file, file.budgets[0], why)


def _clash(
    file: AgentFile,
    names: Mapping[str, AgentFile],
    providers: Mapping[str, AgentFile],
    priced: Mapping[str, AgentFile],
) -> tuple[KeyPath, str] | None:
    """What an earlier file has already: the name, or a provider that is another one there."""
    if file.spec is None:
        return None
    if (other := names.get(file.name)) is not None:
        why = f"{file.name!r} is the name of the agent in {other.source.name} already; rename one"
        return ("name",), why
    for name, provider in file.providers.items():
        other = providers.get(name)
        if other is not None and other.providers[name] != provider:
            return ("models", name), f"is described differently in {other.source.name}; keep one of the two"
    for model, prices in file.prices.items():
        other = priced.get(model)
        if other is not None and other.prices[model] != prices:
            return ("prices", model), f"is priced differently in {other.source.name}; keep one of the two"
    return None
