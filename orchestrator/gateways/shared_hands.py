"""What the processes of a pool have in hand, in memory that they share with their parent.

The heartbeat of a tool call must not depend on the process that carries it out: a tool may keep the interpreter to
itself, and a process may be stopped. So each process of the pool writes down what it holds, before it begins, in a
place of its own, and its parent renews that as long as the process is there.

A process may die or stop in the middle of writing: what is read carries a checksum, and where it is wrong, what was
read before still counts. And the parent may be the one that does not beat: it notes when it has, and where that is too
long ago, or where there is no place, the process renews what it holds by itself.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

from chordage.orchestrator.gateways.in_flight import InFlightWork

PLACES = 256
SIZE = 64 * 1024  # bytes of a place; what is not used costs nothing
_BEATEN = struct.Struct("=d")
_HEAD = struct.Struct("=QII")  # whose, how long, checksum
_WRITTEN = ("run_id", "epoch", "call_id", "key", "thread_id", "token", "behind", "since")


class SharedHands:
    """Made in the parent, before the pool is."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, PLACES * SIZE)

    def write(self, place: int, pid: int, hands: Iterable[InFlightWork]) -> None:
        content = _written(hands)
        at = place * SIZE + _BEATEN.size
        self._memory[at + _HEAD.size : at + _HEAD.size + len(content)] = content
        self._memory[at : at + _HEAD.size] = _HEAD.pack(pid, len(content), zlib.crc32(content))

    def read(self, place: int) -> tuple[int, list[dict[str, Any]]] | None:
        """Whose it is and what it holds; None: it is being written, or never was."""
        at = place * SIZE + _BEATEN.size
        pid, length, checksum = _HEAD.unpack(self._memory[at : at + _HEAD.size])
        content = self._memory[at + _HEAD.size : at + _HEAD.size + min(length, _ROOM)]
        if not pid or zlib.crc32(content) != checksum:
            return None
        held: list[dict[str, Any]] = json.loads(content)
        return pid, held

    def note_beat(self, place: int, at: float) -> None:
        self._memory[place * SIZE : place * SIZE + _BEATEN.size] = _BEATEN.pack(at)

    def beaten(self, place: int) -> float:
        """When the parent has last renewed all that is held there; the monotonic clock is that of the machine."""
        found: float = _BEATEN.unpack(self._memory[place * SIZE : place * SIZE + _BEATEN.size])[0]
        return found


_ROOM = SIZE - _BEATEN.size - _HEAD.size


def _written(hands: Iterable[InFlightWork]) -> bytes:
    held = [{name: getattr(hand, name) for name in _WRITTEN} for hand in hands]
    content = json.dumps(held).encode()
    if len(content) > _ROOM:  # a batch of very many calls: those that wait in it are sent again where they get late
        content = json.dumps([{**one, "behind": []} for one in held]).encode()
    return content if len(content) <= _ROOM else b"[]"


class OfChildren:
    """The parent's side: what its children hold, as hands that are renewed like its own."""

    def __init__(self, shared: SharedHands) -> None:
        self._shared = shared
        self._seen: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self._hands: dict[tuple[int, Any, float], InFlightWork] = {}
        self._places: dict[int, list[InFlightWork]] = {}

    def hands(self, alive: Collection[int], worker_of: Callable[[int], str]) -> list[InFlightWork]:
        """Those of the processes that are there. The same hand as before stays the same object."""
        known, self._hands, self._places = self._hands, {}, {}
        for place in range(PLACES):
            seen = self._shared.read(place) or self._seen.get(place)
            if seen is None or seen[0] not in alive:
                self._seen.pop(place, None)
                continue
            self._seen[place] = seen
            pid, held = seen
            for one in held:
                key = (pid, one["call_id"], one["since"])
                hand = known.get(key) or InFlightWork(**one, worker=worker_of(pid))
                hand.behind = one["behind"]
                self._hands[key] = hand
                self._places.setdefault(place, []).append(hand)
        return list(self._hands.values())

    def note_beats(self) -> None:
        for place, hands in self._places.items():
            times = [hand.beaten for hand in hands if hand.beaten is not None]
            if times:
                self._shared.note_beat(place, min(times))

    def holder(self, hand: InFlightWork) -> int | None:
        """The process that has it in hand at this moment."""
        for place, hands in self._places.items():
            if hand in hands and (seen := self._shared.read(place) or self._seen.get(place)) is not None:
                pid, held = seen
                return pid if any(one["since"] == hand.since and one["token"] == hand.token for one in held) else None
        return None


class OfThisChild:
    """The child's side: what it holds is written down whenever that changes."""

    def __init__(self, shared: SharedHands, place: int, pid: int) -> None:
        self._shared = shared
        self._place = place
        self._pid = pid
        self.changed([])

    def changed(self, hands: Collection[InFlightWork]) -> None:
        """From one thread at a time."""
        self._shared.write(self._place, self._pid, hands)

    def note_beats_of_the_parent(self, hands: Iterable[InFlightWork]) -> None:
        at = self._shared.beaten(self._place)
        for hand in hands:
            if at >= hand.since:
                hand.beaten = max(at, hand.beaten or 0.0)
