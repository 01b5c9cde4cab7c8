"""Sequence numbers of Responses: where in a turn an event lies, not how many events came before it.

A number is made of the step, a section of the step, and a place in that section, which in a text is its characters so
far. So every replay numbers alike, whatever was sent of it before and by which process. A reader can continue in the
middle of a text, though no chunk of it is stored. Numbers have gaps.

Two attempts at a text have the same places. So the lowest digits are a checksum of the text so far: it tells whether
what a reader has is the beginning of the text that was committed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from chordage.orchestrator.faces.face import Wire

INTERRUPTED, RESET = "stream_interrupted", "stream_reset"
# The sections of a step. Those from the first to the second are of its text: another one for each text that was lost.
TEXT, REPLIED, SETTLED, LATER = 1, 90, 91, 92
SECTIONS, PLACES, CHECKSUMS = 100, 10**6, 4096
LAST = PLACES - 1  # of a section


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
    def is_text(self) -> bool:
        return TEXT <= self.section < REPLIED

    def plus(self, places: int) -> SequencePlace:
        return self._replace(at=self.at + places)


class ReadersPlace:
    """What a reader still needs who has everything up to a number, from any stream of this response."""

    def __init__(self, number: int) -> None:
        self._number, self._place = number, SequencePlace.of(number)
        self._chars = self._place.at - 1
        self._may_go_on = not self._place.is_text or self._chars < 0  # else the text shows it
        self._text = ""

    def left(self, events: Iterable[Wire]) -> Iterator[Wire]:
        """Without what the reader has. Of a text it has begun, what follows; or an error at the end, if that text was
        dropped, or is one that followed a dropped one: then only the beginning of the response helps.
        """
        for event in events:
            if self._is_of_its_text(event):
                before, self._text = len(self._text), self._text + event["delta"]
                if len(self._text) >= self._chars > before or (self._chars == before == 0):
                    self._may_go_on = self._matches()
                elif len(self._text) < self._chars:
                    continue
                event = event | {"delta": self._text[max(before, self._chars) :]}  # noqa: PLW2901 - its rest
                if self._may_go_on and not event["delta"]:
                    continue
            elif event["sequence_number"] <= self._number:
                continue
            if not self._may_go_on:
                message = "the text was begun again: read the response from its beginning"
                yield broken_off(event["sequence_number"], message, RESET)
                return
            yield event

    def _is_of_its_text(self, event: Wire) -> bool:
        place = SequencePlace.of(event["sequence_number"])
        is_same = (place.step, place.is_text) == (self._place.step, self._place.is_text)
        return is_same and event["type"] == "response.output_text.delta" and place.section <= self._place.section

    def _matches(self) -> bool:
        is_first = self._place.section == TEXT
        return is_first and checksum(self._text[: self._chars]) % CHECKSUMS == self._place.checksum


def broken_off(number: int, message: str, code: str = INTERRUPTED) -> Wire:
    """Instead of the end. The turn continues."""
    return {"type": "error", "sequence_number": number, "code": code, "message": message, "param": None}


def checksum(text: str, before: int = 0) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), before)
