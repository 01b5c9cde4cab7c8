"""From the text of one file to a task, a chore or the will. What is wrong is one fault with its line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, NoReturn, TypeVar

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.pulse import Schedule, WorkItem, WorkKind
from chordage.orchestrator.gateways.schedules import front_matter
from chordage.orchestrator.gateways.schedules.front_matter import Parts
from chordage.orchestrator.gateways.schedules.times import Every, cron_from, every_from, rule_from, zone_from

T = TypeVar("T")

HOURLY = Every(seconds=3600.0)  # of a chore or will without a schedule
LONGEST_KEY = 190  # together with its prefix, the key is the id of a thread
_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,63}")
_SCHEDULES = ("every", "interval_sec", "cron", "rrule")
_KEYS = {*_SCHEDULES, "timezone", "title", "agent", "paused", "id", "status", "requester", "thread_id"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Status(StrEnum):
    TODO = "todo"
    DOING = "doing"
    DONE = "done"
    CANCELLED = "cancelled"


CLOSED = frozenset({Status.DONE, Status.CANCELLED})


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDocument:
    """A task file, for the tools that change it."""

    path: str
    raw: bytes
    text: str
    item: WorkItem
    status: str

    @property
    def version(self) -> str:
        return self.item.hash[:12]


def read_item(path: str, raw: bytes) -> WorkItem | None:
    """None for a task that has no id yet. Raises RoomError with file and line."""
    reading = _Reading(path, front_matter.parts_of(_decoded(path, raw), path))
    kind = kind_of(path)
    return reading.task() if kind is WorkKind.TASK else reading.scheduled(kind)


def read_task(path: str, raw: bytes) -> TaskDocument:
    """Raises RoomError with file and line, also for a file that is no task any more."""
    item = read_item(path, raw)
    if item is None:
        raise RoomError(f"{path}:1: its id is gone: write the line `id: ...` again")
    text = raw.decode()
    status = front_matter.parts_of(text, path).values.get("status", Status.TODO)
    return TaskDocument(path=path, raw=raw, text=text, item=item, status=str(status))


def _decoded(path: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise front_matter.fault(path, line, "this is not UTF-8: save it as such") from error


def kind_of(path: str) -> WorkKind:
    return {"tasks": WorkKind.TASK, "chores": WorkKind.CHORE}.get(PurePosixPath(path).parts[0], WorkKind.WILL)


def key_of(path: str) -> str:
    """Of a chore: its path below the folder. A name may have dots."""
    return path.removesuffix(".md").partition("/")[2] or "will"


class _Reading:
    def __init__(self, path: str, parts: Parts) -> None:
        self._path = path
        self._parts = parts
        self._values = parts.values

    def task(self) -> WorkItem | None:
        key = self._id()
        status = self._status()
        self._word("requester")
        text = self._parts.body.strip() or PurePosixPath(self._path).name.removesuffix(".md")
        if key is None:
            return None
        return WorkItem(
            kind=WorkKind.TASK, key=key, path=self._path, title=_first_line(text), text=text,
            hash=self._hash("id", "paused"), agent=self._agent(), paused=self._flag("paused"), closed=status in CLOSED,
        )  # fmt: skip

    def scheduled(self, kind: WorkKind) -> WorkItem:
        if "thread_id" in self._values:
            self._refuse("thread_id", "a chore and the will have a thread of their own: take this line away")
        key = self._key(kind)
        schedule, words = self._schedule()
        title = self._word("title") or PurePosixPath(self._path).name.removesuffix(".md")
        text = f"# {title}\n\n{self._parts.body.strip()}".strip()
        return WorkItem(
            kind=kind, key=key, path=self._path, title=title, text=text, hash=self._hash("paused"), agent=self._agent(),
            paused=self._flag("paused"), schedule=schedule, schedule_words=words,
        )  # fmt: skip

    def _id(self) -> str | None:
        if "id" not in self._parts.keys:
            return None
        written = self._parts.keys["id"].plain
        if written is None or not _ID.fullmatch(written):
            self._refuse(
                "id",
                f"{self._values['id']!r} is no id: 1 to 64 letters, digits, _ or -, with single dots between; "
                "take the line away, and the file is given one",
            )
        return written

    def _key(self, kind: WorkKind) -> str:
        key = key_of(self._path)
        if kind is WorkKind.CHORE and (len(key) > LONGEST_KEY or not key.isprintable()):
            raise front_matter.fault(
                self._path, 1, f"its path must have at most {LONGEST_KEY} visible characters: rename it"
            )
        return key

    def _schedule(self) -> tuple[Schedule, str]:
        self._refuse_misspelt()
        names = [name for name in _SCHEDULES if name in self._values]
        if len(names) > 1:
            self._refuse(names[1], f"there is {names[0]} too: keep one of {', '.join(names)}")
        zone_name = self._word("timezone") or "UTC"
        zone = self._try("timezone", zone_from, zone_name)
        if not names:
            return HOURLY, "every 3600 s"
        name, value = names[0], self._values[names[0]]
        if isinstance(value, str) and len(value) > bounds.SCHEDULE_CHARS:
            self._refuse(name, f"it has {len(value)} characters, the limit is {bounds.SCHEDULE_CHARS}: make it shorter")
        readers: Mapping[str, Callable[[Any], Schedule]] = {
            "every": every_from,
            "interval_sec": every_from,
            "cron": lambda written: cron_from(written, zone),
            "rrule": lambda written: rule_from(written, zone),
        }
        schedule = self._try(name, readers[name], value)
        if isinstance(schedule, Every):
            return schedule, f"every {schedule.seconds:g} s"
        return schedule, f"{name} {' '.join(str(value).split())}, {zone_name}"

    def _refuse_misspelt(self) -> None:
        """Other unknown keys are kept, but without its schedule the work would run every hour."""
        for key in map(str, self._values):
            if key in _KEYS:
                continue
            if key == "schedule":
                self._refuse(key, f"there is no such key; one of {', '.join(_SCHEDULES)} says when")
            if close := get_close_matches(key.lower(), (*_SCHEDULES, "timezone"), n=1, cutoff=0.75):
                self._refuse(key, f"there is no such key; did you mean {close[0]}?")

    def _try(self, key: str, read: Callable[[Any], T], value: Any) -> T:
        try:
            return read(value)
        except ValueError as error:
            self._refuse(key, str(error))

    def _agent(self) -> str | None:
        name = self._word("agent")
        if name is not None and not _NAME.fullmatch(name):
            self._refuse("agent", f"{name!r} is no name of an agent: give one of agent.toml and agents/*.toml")
        return name

    def _word(self, key: str) -> str | None:
        if (value := self._values.get(key)) is None:
            return None
        plain = self._parts.keys[key].plain
        if isinstance(value, dict | list) or plain is None or not plain.strip():
            self._refuse(key, f"must be text, not {value!r}")
        return " ".join(plain.split())

    def _flag(self, key: str) -> bool:
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            self._refuse(key, f"must be true or false, not {value!r}")
        return value

    def _status(self) -> Status:
        value = self._values.get("status", Status.TODO)
        if value not in list(Status):
            self._refuse("status", f"must be one of {', '.join(Status)}, not {value!r}")
        return Status(value)

    def _refuse(self, key: str, why: str) -> NoReturn:
        raise front_matter.fault(self._path, self._parts.line(key), f"{key}: {why}")

    def _hash(self, *without: str) -> str:
        """Of every key, also unknown ones, and the body."""
        matter = {name: value for name, value in self._values.items() if name not in without}
        try:
            content = json.dumps([matter, self._parts.body], sort_keys=True, default=str, ensure_ascii=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise RoomError(
                f"{self._path}:2: the front matter cannot be compared: {error}; use words for keys"
            ) from error
        return hashlib.sha256(content.encode()).hexdigest()


def _first_line(text: str) -> str:
    return text.splitlines()[0].lstrip("# ")[:200]
