"""The in-flight work of the processes of a pool, in memory that they share with their parent.

The heartbeat of a tool call must not depend on the process that runs it: a tool may keep the interpreter to itself, and
a process may be stopped. So each process of the pool writes down its work before it begins, in a slot of its own, and
its parent renews the leases as long as the process exists.

A process may die or stop while it writes. So the content carries a checksum, and where it is wrong, the content that
was read before still counts. The parent may fail to beat, too: it writes when it last has, and where that is too long
ago, or where there is no slot, the process renews its leases itself.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

from chordage.orchestrator.gateways.in_flight import InFlightWork

SLOTS = 256
SLOT_BYTES = 64 * 1024  # unused memory costs nothing
_BEAT = struct.Struct("=d")
_HEAD = struct.Struct("=QII")  # pid, length, checksum
_CONTENT_BYTES = SLOT_BYTES - _BEAT.size - _HEAD.size
_FIELDS = ("run_id", "epoch", "call_id", "key", "thread_id", "token", "behind", "since")

Fields = dict[str, Any]


class PoolMemory:
    """Made in the parent, before the pool is."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SLOTS * SLOT_BYTES)
        self._shown = mmap.mmap(-1, _BEAT.size)

    def note_shown(self, at: float) -> None:
        """The parent has just shown that all processes of the pool live."""
        self._shown[:] = _BEAT.pack(at)

    def last_shown(self) -> float:
        shown: float = _BEAT.unpack(self._shown[:])[0]
        return shown

    def write(self, slot: int, pid: int, works: Iterable[InFlightWork]) -> None:
        content = _encoded(works)
        at = slot * SLOT_BYTES + _BEAT.size
        self._memory[at + _HEAD.size : at + _HEAD.size + len(content)] = content
        self._memory[at : at + _HEAD.size] = _HEAD.pack(pid, len(content), zlib.crc32(content))

    def read(self, slot: int) -> tuple[int, list[Fields]] | None:
        """The process and its work; None: it is being written, or never was."""
        at = slot * SLOT_BYTES + _BEAT.size
        pid, length, checksum = _HEAD.unpack(self._memory[at : at + _HEAD.size])
        content = self._memory[at + _HEAD.size : at + _HEAD.size + min(length, _CONTENT_BYTES)]
        if not pid or zlib.crc32(content) != checksum:
            return None
        works: list[Fields] = json.loads(content)
        return pid, works

    def write_beat(self, slot: int, at: float) -> None:
        self._memory[slot * SLOT_BYTES : slot * SLOT_BYTES + _BEAT.size] = _BEAT.pack(at)

    def last_beat(self, slot: int) -> float:
        """When the parent last renewed all work of the slot; the monotonic clock is that of the machine."""
        beat: float = _BEAT.unpack(self._memory[slot * SLOT_BYTES : slot * SLOT_BYTES + _BEAT.size])[0]
        return beat


def _encoded(works: Iterable[InFlightWork]) -> bytes:
    fields = [{name: getattr(work, name) for name in _FIELDS} for work in works]
    content = json.dumps(fields).encode()
    if len(content) > _CONTENT_BYTES:  # a batch of very many calls: those that wait in it are sent again when late
        content = json.dumps([{**work, "behind": []} for work in fields]).encode()
    return content if len(content) <= _CONTENT_BYTES else b"[]"


class PoolParent:
    """The work of the children, as objects that are renewed like the parent's own."""

    def __init__(self, memory: PoolMemory) -> None:
        self._memory = memory
        self._last_read: dict[int, tuple[int, list[Fields]]] = {}
        self._works: dict[tuple[int, Any, float], InFlightWork] = {}
        self._slots: dict[int, list[InFlightWork]] = {}

    def works(self, alive: Collection[int], worker_of: Callable[[int], str]) -> list[InFlightWork]:
        """Of the processes that are alive. The same work as before stays the same object."""
        known, self._works, self._slots = self._works, {}, {}
        for slot in range(SLOTS):
            content = self._memory.read(slot) or self._last_read.get(slot)
            if content is None or content[0] not in alive:
                self._last_read.pop(slot, None)
                continue
            self._last_read[slot] = content
            pid, works = content
            for fields in works:
                key = (pid, fields["call_id"], fields["since"])
                work = known.get(key) or InFlightWork(**fields, worker=worker_of(pid))
                work.behind = fields["behind"]
                self._works[key] = work
                self._slots.setdefault(slot, []).append(work)
        return list(self._works.values())

    def write_beats(self) -> None:
        for slot, works in self._slots.items():
            beats = [work.beaten for work in works if work.beaten is not None]
            if beats:
                self._memory.write_beat(slot, min(beats))

    def holder(self, work: InFlightWork) -> int | None:
        """The process that has it in flight at this moment."""
        for slot, works in self._slots.items():
            if work in works and (content := self._memory.read(slot) or self._last_read.get(slot)) is not None:
                pid, present = content
                same = any(fields["since"] == work.since and fields["token"] == work.token for fields in present)
                return pid if same else None
        return None


class PoolChild:
    """Writes the work of this process down whenever it changes."""

    def __init__(self, memory: PoolMemory, slot: int, pid: int) -> None:
        self._memory = memory
        self._slot = slot
        self._pid = pid
        self.changed([])

    def changed(self, works: Collection[InFlightWork]) -> None:
        """From one thread at a time."""
        self._memory.write(self._slot, self._pid, works)

    def read_beats(self, works: Iterable[InFlightWork]) -> None:
        """Note on each work when the parent last renewed it."""
        at = self._memory.last_beat(self._slot)
        for work in works:
            if at >= work.since:
                work.beaten = max(at, work.beaten or 0.0)
