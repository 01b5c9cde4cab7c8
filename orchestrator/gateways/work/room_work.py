"""The standing work of a room as it is now. Files that did not change are looked at and not read again."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chordage.orchestrator.core.errors import LostRace, RoomError
from chordage.orchestrator.core.standing_work import Item, Kind
from chordage.orchestrator.gateways.room.files import Stamp
from chordage.orchestrator.gateways.room.reading import known_agents, no_such_agent
from chordage.orchestrator.gateways.work import changing, finding, mirror
from chordage.orchestrator.gateways.work.documents import document_from
from chordage.orchestrator.gateways.work.front_matter import fault, parts_of
from chordage.orchestrator.gateways.work.put_off import PutOff

JUST_NOW = 2_000_000_000  # ns: a file as young as this may change again without looking any different

Name = tuple[Kind, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What there was at one moment. A file that did not change since the last look is the same object."""

    items: Mapping[Name, Item]
    faults: Mapping[str, RoomError]  # by path

    def may_be_there(self, path: str) -> bool:
        """Of an item that was not found: its file cannot be read, and nobody knows what it says."""
        return any(finding.below(path, dict(self.faults)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    trace: Stamp | None
    item: Item | None = None
    fault: RoomError | None = None


@dataclass(slots=True)
class Memory:
    """What this process remembers from tick to tick, so that nothing is asked twice."""

    settled: dict[Name, Item] = field(default_factory=dict)  # the row says the same as the file
    verified_at: float | None = None  # when all rows were last looked at
    known: bool = False  # there are files or rows at all
    told: dict[str, str] = field(default_factory=dict)  # faults that are in the log
    put_off: PutOff = field(default_factory=PutOff)
    mirrored: str = ""  # what pulse.json was made to say


class RoomWork:
    """Safe to share between threads; `busy` is for those who tick."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.memory = Memory()
        self.busy = threading.Lock()
        self._files: dict[str, _File] = {}
        self._told: dict[str, str] = {}
        self._look = Look(items={}, faults={})
        self._looking = threading.Lock()

    @property
    def snapshot(self) -> Look:
        """The last look, without touching the disk."""
        return self._look

    def look(self, *, give_ids: bool = False) -> Look:
        with self._looking:
            found = finding.find(self.room)
            files = {path: self._file(path, trace, give_ids=give_ids) for path, trace in found.files.items()}
            told = {path: str(error) for path, error in found.faults.items()}
            if told != self._told or not _are_the_same(files, self._files):
                self._files, self._told, self._look = files, told, _look_of(files, found.faults)
            return self._look

    def again(self, item: Item) -> Item | None:
        """The same file, read now. None: it is something else meanwhile, or not there, or a fault."""
        now = _read(self.room, item.path, give_ids=False).item
        if now is None or (now.kind, now.key) != (item.kind, item.key):
            return None
        return item if now == item else now

    def find_task(self, key: str) -> Item | None:
        """Looked for on the disk only where the last look does not know it, or its file is something else now."""
        known = self._look.items.get((Kind.TASK, key))
        if known is not None and (now := self.again(known)) is not None:
            return now
        return self.look().items.get((Kind.TASK, key))

    def mirror(self, shown: object) -> None:
        """What the rows say, for people to read. Nothing ever reads it back."""
        text = mirror.text_of(shown)
        if text != self.memory.mirrored:
            self.memory.mirrored = text
            mirror.write(self.room / "pulse.json", text)

    def _file(self, path: str, trace: Stamp, *, give_ids: bool) -> _File:
        known = self._files.get(path)
        if known is not None and known.trace == trace and (known.item or known.fault or not give_ids):
            return known
        young = time.time_ns() - trace[0] < JUST_NOW
        read = _read(self.room, path, give_ids=give_ids)
        item = known.item if known is not None and known.item == read.item else read.item
        return _File(trace=None if young else trace, item=item, fault=read.fault)


def _are_the_same(files: Mapping[str, _File], before: Mapping[str, _File]) -> bool:
    return len(files) == len(before) and all(before.get(path) is file for path, file in files.items())


def _look_of(files: Mapping[str, _File], faults: Mapping[str, RoomError]) -> Look:
    items: dict[Name, Item] = {}
    wrong = dict(faults)
    for path, file in files.items():
        if file.fault is not None:
            wrong[path] = file.fault
        if (item := file.item) is None:
            continue
        first = items.setdefault((item.kind, item.key), item)
        if first is not item:
            why = f"has the id of {first.path}, {item.key}: take its id line away, and it is a task of its own"
            wrong[path] = fault(path, 1, why)
    return Look(items=items, faults=wrong)


def _read(room: Path, path: str, *, give_ids: bool) -> _File:
    try:
        return _File(trace=None, item=_item(room / path, path, give_ids=give_ids))
    except RoomError as error:
        return _File(trace=None, fault=error)


def _item(file: Path, path: str, *, give_ids: bool) -> Item | None:
    try:
        raw = file.read_bytes()
        document = document_from(path, raw.decode())
        if document.item is None and give_ids:
            return _with_id(file, path)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise fault(path, line, "this is not UTF-8: save it as such") from error
    except FileNotFoundError:
        return None
    except OSError as error:
        raise fault(path, 1, f"cannot be read or written ({error.strerror}): put it right, or take it away") from error
    return document.item


def _with_id(file: Path, path: str) -> Item | None:
    """Its id is written into it once; where that is impossible, the file says so and is no task."""
    try:
        with changing.holding(file):
            changed_ns, raw = file.stat().st_mtime_ns, file.read_bytes()
            document = document_from(path, text := raw.decode())
            if document.item is not None:  # somebody else was first
                return document.item
            text = changing.with_id(text, path, changing.id_for(path, raw, changed_ns))
            changing.replace(file, raw, text.encode())
    except LostRace:
        return None  # an editor saved it just now; the next look finds it again
    except OSError as error:
        why = f"it has no id, and none can be written into it ({error.strerror}): add a line such as `id: abcd2345`"
        raise fault(path, 1, why) from error
    return document_from(path, text).item


def faults(room: Path) -> list[RoomError]:
    """What is wrong with tasks, chores and the will, in the order of their paths. Nothing is written."""
    look = RoomWork(room).look()
    found, known = dict(look.faults), known_agents(room) if look.items else []
    for item in look.items.values():
        if (why := no_such_agent(item.agent, known)) is not None and not item.closed:
            found.setdefault(item.path, fault(item.path, _line_of(room / item.path, "agent"), f"agent: {why}"))
    return [error for _path, error in sorted(found.items())]


def _line_of(file: Path, key: str) -> int:
    """1 where the file has changed since it was read."""
    try:
        return parts_of(file.read_text(encoding="utf-8"), file.name).line(key)
    except (OSError, UnicodeDecodeError, RoomError):
        return 1
