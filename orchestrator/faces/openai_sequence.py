"""Sequence numbers of Responses: where in a turn an event lies, not how many events came before it.

A number is made of the step, a section of the step, and a place in that section, which in a text is its characters so
far. So every replay numbers alike, whatever was sent of it before and by which process. A reader can continue in the
middle of a text, though no chunk of it is stored. Numbers have gaps.

Two attempts at a text have the same places. So the lowest digits are a checksum of the text so far, with the reasoning
before it: it tells whether what a reader has is the beginning of what was committed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from chordage.orchestrator.faces.face import Wire

INTERRUPTED, RESET = "stream_interrupted", "stream_reset"
# The sections of a step. Those before REPLIED are of its reasoning (even) and its text (odd): another pair for each
# attempt that was lost.
TEXT, REPLIED, SETTLED, LATER = 1, 90, 91, 92
SECTIONS, PLACES, CHECKSUMS = 100, 10**6, 4096
LAST = PLACES - 1  # of a section
_BEHIND = LAST - 3  # where reasoning ends that is followed by its text
_DELTAS = frozenset({"response.reasoning_summary_text.delta", "response.output_text.delta"})


class SequencePlace(NamedTuple):
    step: int
    section: int = 0
    at: int = 0
    checksum: int = 0

    @property
    def number(self) -> int:
        place = (self.step * SECTIONS + self.section) * PLACES + min(self.at, LAST)
        return place * CHECKSUMS + self.checksum % CHECKSUMS

    @classmethod
    def of(cls, number: int) -> SequencePlace:
        place, check = divmod(number, CHECKSUMS)
        section, at = divmod(place, PLACES)
        return cls(*divmod(section, SECTIONS), at, check)

    @property
    def is_of_reply(self) -> bool:
        """In its text, or in the reasoning before it."""
        return self.step > 0 and self.section < REPLIED

    @property
    def is_text(self) -> bool:
        return self.is_of_reply and self.section % 2 == TEXT

    def plus(self, places: int) -> SequencePlace:
        return self._replace(at=self.at + places)


def of_reasoning(step: int, lost: int) -> SequencePlace:
    """`lost`: the attempts before it."""
    return SequencePlace(step, min(2 * lost, REPLIED - 2))


def behind_reasoning(place: SequencePlace, checksum: int) -> SequencePlace:
    return place._replace(at=_BEHIND, checksum=checksum)


def of_text(step: int, lost: int, checksum: int) -> SequencePlace:
    """`checksum`: of the reasoning before it."""
    return SequencePlace(step, min(TEXT + 2 * lost, REPLIED - 1), checksum=checksum)


class ReadersPlace:
    """What a reader still needs who has everything up to a number, from any stream of this response."""

    def __init__(self, number: int) -> None:
        self._number, self._place = number, SequencePlace.of(number)
        self._chars = self._place.at - 1
        self._may_go_on = not self._place.is_of_reply  # else what was committed shows it
        self._before = 0  # the checksum of the reasoning before its text
        self._text = ""  # that the reader is in, or reasoning

    def left(self, events: Iterable[Wire]) -> Iterator[Wire]:
        """Without what the reader has. Of a text it has begun, what follows; or an error at the end, if that text was
        dropped, or is one that followed a dropped one: then only the beginning of the response helps.
        """
        for event in events:
            place = SequencePlace.of(event["sequence_number"])
            if self._is_of_its_reply(event, place) and place.is_text == self._place.is_text:
                before, self._text = len(self._text), self._text + event["delta"]
                if len(self._text) >= self._chars > before or (self._chars == before == 0):
                    self._may_go_on = self._matches(self._text[: self._chars])
                elif len(self._text) < self._chars:
                    continue
                event = event | {"delta": self._text[max(before, self._chars) :]}  # noqa: PLW2901 - its rest
                if self._may_go_on and not event["delta"]:
                    continue
            elif event["sequence_number"] <= self._number:
                if self._is_of_its_reply(event, place):
                    self._before = checksum(event["delta"], self._before)
                continue
            if not self._may_go_on and not self._is_behind_all():
                message = "the text was begun again: read the response from its beginning"
                yield broken_off(event["sequence_number"], message, RESET)
                return
            self._may_go_on = True
            yield event

    def _is_of_its_reply(self, event: Wire, place: SequencePlace) -> bool:
        own = self._place
        is_same = own.is_of_reply and place.is_of_reply and place.step == own.step
        return is_same and place.section <= own.section and event["type"] in _DELTAS

    def _is_behind_all(self) -> bool:
        """Where the text has not begun, whether the reasoning is the one that the reader has; or all of it is."""
        is_ended = not self._place.is_text and _BEHIND <= self._place.at < LAST
        return (self._chars < 0 or is_ended) and self._matches(self._text)

    def _matches(self, text: str) -> bool:
        is_first = self._place.section <= TEXT
        return is_first and checksum(text, self._before) % CHECKSUMS == self._place.checksum


def broken_off(number: int, message: str, code: str = INTERRUPTED) -> Wire:
    """Instead of the end. The turn continues."""
    return {"type": "error", "sequence_number": number, "code": code, "message": message, "param": None}


def checksum(text: str, before: int = 0) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), before)
