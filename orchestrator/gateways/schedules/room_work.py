"""The tasks, chores and will of a room as they are now. Unchanged files are not read again."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from chordage.orchestrator.core.errors import LostRace, RoomError
from chordage.orchestrator.core.pulse import WorkItem, WorkKind
from chordage.orchestrator.gateways.room.files import Stamp
from chordage.orchestrator.gateways.schedules import files, front_matter
from chordage.orchestrator.gateways.schedules.documents import read_item
from chordage.orchestrator.gateways.schedules.front_matter import fault
from chordage.orchestrator.system import private_files

log = structlog.get_logger()

JUST_NOW = 2_000_000_000  # ns: a file as young as this may change again without a new stamp
MIRROR = "pulse.json"  # what the rows say, for people to read
KINDS = list(WorkKind)

Name = tuple[WorkKind, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkSnapshot:
    """What there was at one moment. A file that did not change since the last one is the same object."""

    items: Mapping[Name, WorkItem]
    faults: Mapping[str, RoomError]  # by path

    def may_be_there(self, path: str) -> bool:
        """Of an item that is not in here: its file cannot be read, and may hold anything."""
        return files.has_fault(path, self.faults)


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    stamp: Stamp | None
    item: WorkItem | None = None
    fault: RoomError | None = None


@dataclass(slots=True)
class Postponed:
    """Work for which a queue had no room, with whether that is in the log.

    First in line is what was not tried, then what was refused: each is tried in turn.
    """

    logged: dict[Name, bool] = field(default_factory=dict)

    def in_turn(self, items: Iterable[WorkItem]) -> list[WorkItem]:
        places = {name: place for place, name in enumerate(self.logged)}
        last = len(places)
        return sorted(items, key=lambda item: (KINDS.index(item.kind), places.get((item.kind, item.key), last)))

    def not_tried(self, name: Name) -> None:
        self.logged.setdefault(name, False)

    def refused(self, name: Name) -> bool:
        """Whether it is still to be logged."""
        is_logged = self.logged.get(name, False)
        self.logged[name] = True
        return not is_logged

    def to_the_end(self, names: Iterable[Name]) -> None:
        for name in names:
            self.logged[name] = self.logged.pop(name)

    def done(self, name: Name) -> None:
        self.logged.pop(name, None)

    def keep(self, names: Iterable[Name]) -> None:
        present = set(names)
        self.logged = {name: is_logged for name, is_logged in self.logged.items() if name in present}


@dataclass(slots=True)
class PulseMemory:
    """What this process remembers from tick to tick, to save queries. It may be lost at any time."""

    settled: dict[Name, WorkItem] = field(default_factory=dict)  # the row says the same as the file
    verified_at: float | None = None  # when all rows were last compared
    known: bool = False  # there are files or rows at all
    logged: dict[str, str] = field(default_factory=dict)  # faults, by path
    postponed: Postponed = field(default_factory=Postponed)
    mirrored: str = ""  # what pulse.json holds


class RoomWork:
    """Safe to share between threads; a thread that ticks holds `busy`."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.memory = PulseMemory()
        self.busy = threading.Lock()
        self._files: dict[str, _File] = {}
        self._faults: dict[str, str] = {}
        self._snapshot = WorkSnapshot(items={}, faults={})
        self._reading = threading.Lock()

    @property
    def snapshot(self) -> WorkSnapshot:
        """The last one, without touching the disk."""
        return self._snapshot

    def read(self, *, give_ids: bool = False) -> WorkSnapshot:
        with self._reading:
            there = files.find(self.room)
            now = {path: self._file(path, stamp, give_ids=give_ids) for path, stamp in there.stamps.items()}
            faults = {path: str(error) for path, error in there.faults.items()}
            is_same = now.keys() == self._files.keys() and all(self._files[path] is file for path, file in now.items())
            if faults != self._faults or not is_same:
                self._files, self._faults, self._snapshot = now, faults, _snapshot(now, there.faults)
            return self._snapshot

    def again(self, item: WorkItem) -> WorkItem | None:
        """The same file, read now. None where it is gone, broken, or another item."""
        now = _read(self.room, item.path, give_ids=False).item
        if now is None or (now.kind, now.key) != (item.kind, item.key):
            return None
        return item if now == item else now

    def find_task(self, key: str) -> WorkItem | None:
        """Looked for on the disk only where the snapshot does not have it, or its file is something else now."""
        known = self._snapshot.items.get((WorkKind.TASK, key))
        if known is not None and (now := self.again(known)) is not None:
            return now
        return self.read().items.get((WorkKind.TASK, key))

    def mirror(self, shown: Any) -> None:
        """Write pulse.json. Nothing reads it back, and a room that cannot be written to has none."""
        text = json.dumps(dataclasses.asdict(shown), default=_plain, ensure_ascii=False, indent=1) + "\n"
        if text == self.memory.mirrored:
            return
        self.memory.mirrored = text
        try:
            private_files.write(self.room / MIRROR, text)
        except OSError as error:
            log.warning("pulse.json was not written", error=str(error))

    def _file(self, path: str, stamp: Stamp, *, give_ids: bool) -> _File:
        known = self._files.get(path)
        if known is not None and known.stamp == stamp and (known.item or known.fault or not give_ids):
            return known
        is_young = time.time_ns() - stamp[0] < JUST_NOW
        file = _read(self.room, path, give_ids=give_ids)
        item = known.item if known is not None and known.item == file.item else file.item
        return _File(stamp=None if is_young else stamp, item=item, fault=file.fault)


def _plain(value: object) -> str:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)


def _snapshot(present: Mapping[str, _File], faults: Mapping[str, RoomError]) -> WorkSnapshot:
    items: dict[Name, WorkItem] = {}
    wrong = dict(faults)
    for path, file in present.items():
        if file.fault is not None:
            wrong[path] = file.fault
        if (item := file.item) is None:
            continue
        first = items.setdefault((item.kind, item.key), item)
        if first is not item:
            why = f"has the id of {first.path}, {item.key}: take its id line away, and it is a task of its own"
            wrong[path] = fault(path, 1, why)
    return WorkSnapshot(items=items, faults=wrong)


def _read(room: Path, path: str, *, give_ids: bool) -> _File:
    try:
        return _File(stamp=None, item=_item(room / path, path, give_ids=give_ids))
    except RoomError as error:
        return _File(stamp=None, fault=error)


def _item(file: Path, path: str, *, give_ids: bool) -> WorkItem | None:
    try:
        item = read_item(path, file.read_bytes())
        return _with_id(file, path) if item is None and give_ids else item
    except FileNotFoundError:
        return None
    except OSError as error:
        raise fault(path, 1, f"cannot be read or written ({error.strerror}): put it right, or take it away") from error


def _with_id(file: Path, path: str) -> WorkItem | None:
    """Its id is written into it once; where that is impossible, the file is a fault and no task."""
    try:
        with files.locked(file):
            changed_ns, raw = file.stat().st_mtime_ns, file.read_bytes()
            item = read_item(path, raw)
            if item is not None:  # another process was first
                return item
            after = front_matter.with_key(raw.decode(), path, "id", files.new_id(path, raw, changed_ns)).encode()
            files.replace(file, raw, after)
    except LostRace:
        return None  # an editor saved it just now; the next reading finds it again
    except OSError as error:
        why = f"it has no id, and none can be written into it ({error.strerror}): add a line such as `id: abcd2345`"
        raise fault(path, 1, why) from error
    return read_item(path, after)
