"""From the text of one file to a task, a chore or the will."""

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
from chordage.orchestrator.core.standing_work import Item, Kind, Schedule
from chordage.orchestrator.gateways.work import front_matter
from chordage.orchestrator.gateways.work.cron import cron_from
from chordage.orchestrator.gateways.work.front_matter import Parts
from chordage.orchestrator.gateways.work.interval import Every, every_from
from chordage.orchestrator.gateways.work.rrule import recurrence_from
from chordage.orchestrator.gateways.work.zones import zone_from

T = TypeVar("T")

USUAL = Every(seconds=3600.0)  # of a chore or will that says nothing
LONGEST_KEY = 190  # with what stands before it, it is the id of a thread
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
class Document:
    """A file that was read. `item` is None for a task that has no id yet."""

    path: str
    text: str
    item: Item | None


def document_from(path: str, text: str) -> Document:
    """Raises RoomError with file and line."""
    parts = front_matter.parts_of(text, path)
    reading = _Reading(path, parts)
    item = reading.task() if kind_of(path) is Kind.TASK else reading.scheduled(kind_of(path))
    return Document(path=path, text=text, item=item)


def kind_of(path: str) -> Kind:
    return {"tasks": Kind.TASK, "chores": Kind.CHORE}.get(PurePosixPath(path).parts[0], Kind.WILL)


def key_of(path: str) -> str:
    """Of a chore: where it stands below its folder. A name may have dots."""
    return path.removesuffix(".md").partition("/")[2] or "will"


class _Reading:
    def __init__(self, path: str, parts: Parts) -> None:
        self._path = path
        self._parts = parts
        self._told = parts.told

    def task(self) -> Item | None:
        key = self._id()
        status = self._one_of("status", Status, Status.TODO)
        self._word("requester")
        text = self._parts.body.strip() or PurePosixPath(self._path).name.removesuffix(".md")
        if key is None:
            return None
        return Item(
            kind=Kind.TASK, key=key, path=self._path, title=_first_line(text), text=text,
            hash=self._hash("id", "paused"), agent=self._agent(), paused=self._flag("paused"), closed=status in CLOSED,
        )  # fmt: skip

    def scheduled(self, kind: Kind) -> Item:
        if "thread_id" in self._told:
            self._refuse("thread_id", "a chore and the will have a thread of their own: take this line away")
        key = self._key(kind)
        schedule, words = self._schedule()
        title = self._word("title") or PurePosixPath(self._path).name.removesuffix(".md")
        text = f"# {title}\n\n{self._parts.body.strip()}".strip()
        return Item(
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
                f"{self._told['id']!r} is no id: 1 to 64 letters, digits, _ or -, with single dots between; "
                "take the line away, and the file is given one",
            )
        return written

    def _key(self, kind: Kind) -> str:
        key = key_of(self._path)
        if kind is Kind.CHORE and (len(key) > LONGEST_KEY or not key.isprintable()):
            raise front_matter.fault(
                self._path, 1, f"its path must have at most {LONGEST_KEY} visible characters: rename it"
            )
        return key

    def _schedule(self) -> tuple[Schedule, str]:
        self._refuse_misspelt()
        given = [name for name in _SCHEDULES if name in self._told]
        if len(given) > 1:
            self._refuse(given[1], f"there is {given[0]} too: keep one of {', '.join(given)}")
        zone_name = self._word("timezone") or "UTC"
        zone = self._try("timezone", zone_from, zone_name)
        if not given:
            return USUAL, "every 3600 s"
        name, value = given[0], self._told[given[0]]
        if isinstance(value, str) and len(value) > bounds.SCHEDULE_CHARS:
            self._refuse(name, f"it has {len(value)} characters, the limit is {bounds.SCHEDULE_CHARS}: make it shorter")
        readers: Mapping[str, Callable[[Any], Schedule]] = {
            "every": every_from,
            "interval_sec": every_from,
            "cron": lambda told: cron_from(told, zone),
            "rrule": lambda told: recurrence_from(told, zone),
        }
        schedule = self._try(name, readers[name], value)
        if isinstance(schedule, Every):
            return schedule, f"every {schedule.seconds:g} s"
        return schedule, f"{name} {' '.join(str(value).split())}, {zone_name}"

    def _refuse_misspelt(self) -> None:
        """Keys that nobody knows are kept, but one that was to say when would leave the work at every hour."""
        for key in map(str, self._told):
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
        if (value := self._told.get(key)) is None:
            return None
        found = self._parts.keys[key].plain
        if isinstance(value, dict | list) or found is None or not found.strip():
            self._refuse(key, f"must be text, not {value!r}")
        return " ".join(found.split())

    def _flag(self, key: str) -> bool:
        value = self._told.get(key, False)
        if not isinstance(value, bool):
            self._refuse(key, f"must be true or false, not {value!r}")
        return value

    def _one_of(self, key: str, choices: type[Status], usual: Status) -> Status:
        value = self._told.get(key, usual)
        if value not in list(choices):
            self._refuse(key, f"must be one of {', '.join(choices)}, not {value!r}")
        return choices(value)

    def _refuse(self, key: str, why: str) -> NoReturn:
        raise front_matter.fault(self._path, self._parts.line(key), f"{key}: {why}")

    def _hash(self, *without: str) -> str:
        """Of every key, also those that nobody knows, and the body."""
        matter = {name: value for name, value in self._told.items() if name not in without}
        try:
            told = json.dumps([matter, self._parts.body], sort_keys=True, default=str, ensure_ascii=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise RoomError(
                f"{self._path}:2: the front matter cannot be compared: {error}; use words for keys"
            ) from error
        return hashlib.sha256(told.encode()).hexdigest()


def _first_line(text: str) -> str:
    return text.splitlines()[0].lstrip("# ")[:200]
