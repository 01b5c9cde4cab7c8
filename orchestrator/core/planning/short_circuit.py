"""Whether a streamed planner says `response`, known as soon as the closing quote of that word has come.

Waiting for the rest would cost the time of a whole plan that nobody reads. The text is read once, character by
character, in constant memory, and wherever it was cut into deltas. Only `next_action` of the plan itself counts: not
one inside a command's arguments, not one that is only talked about in a string, not the second of two. Where the text
is not built like JSON nothing is found: a plan that is not cut short costs time, one that is cut wrongly the plan.
"""

from __future__ import annotations

from collections.abc import Callable

from chordage.orchestrator.core.planning.normalising import action_in
from chordage.orchestrator.core.planning.plan import NextAction
from chordage.orchestrator.core.planning.reading import FOLLOWS, JSON_SPACE, PLAN_KEYS
from chordage.orchestrator.core.planning.short_word import ShortWord

LONGEST = max(map(len, PLAN_KEYS))
_STEP = {"{": 1, "[": 1, "}": -1, "]": -1}


class ResponseWatch:
    """Fed a reply in pieces. `is_response`: it is certain. `is_settled`: nothing that comes can change it any more."""

    __slots__ = ("_depth", "_floor", "_is_plan", "_opener", "_step", "_word", "is_response", "is_settled")

    def __init__(self) -> None:
        self.is_response = False
        self.is_settled = False
        self._step: Callable[[str], None] = self._outside
        self._opener = ""  # a bracket of which it is not known yet whether it is one
        self._depth = 0  # open brackets
        self._floor = 0  # the depth at which what is being passed over is over
        self._is_plan = False  # the object has had a key of a plan
        self._word = ShortWord(longest=LONGEST, trims=False)

    def feed(self, delta: str) -> bool:
        for char in delta:
            if self.is_settled:
                break
            self._step(char)
        return self.is_response

    # Outside, and over what is of no interest

    def _outside(self, char: str) -> None:
        if char in FOLLOWS:
            self._opener, self._step = char, self._after_opener

    def _after_opener(self, char: str) -> None:
        if char in JSON_SPACE:
            return
        if char not in FOLLOWS[self._opener]:
            self._again(self._outside, char)
            return
        self._depth, self._is_plan = 1, False
        if self._opener == "{":
            self._again(self._before_key, char)
        else:
            self._lost(char)

    def _again(self, step: Callable[[str], None], char: str) -> None:
        self._step = step
        step(char)

    def _lost(self, char: str) -> None:
        """No object, or none that is JSON: on to its end, and nothing in it counts."""
        self._floor = 0
        self._again(self._passing, char)

    def _passing(self, char: str) -> None:
        if char == '"':
            self._step = self._passing_text
            return
        self._depth += _STEP.get(char, 0)
        if self._depth == self._floor:
            self._passed()

    def _passed(self) -> None:
        if self._floor == 0:
            self._end()
        else:
            self._step = self._after_value

    def _passing_text(self, char: str) -> None:
        if char == "\\":
            self._step = self._passing_escape
        elif char == '"':
            self._step = self._after_value if self._depth == self._floor else self._passing

    def _passing_escape(self, _: str) -> None:
        self._step = self._passing_text

    def _end(self) -> None:
        self._depth, self._step = 0, self._outside
        self.is_settled = self._is_plan

    # In the object itself

    def _before_key(self, char: str) -> None:
        if char in JSON_SPACE:
            return
        if char == '"':
            self._begin_word(trims=False)
        elif char == "}":
            self._end()
        else:
            self._lost(char)

    def _before_colon(self, char: str) -> None:
        if char == ":":
            self._step = self._before_value
        elif char not in JSON_SPACE:
            self._lost(char)

    def _before_value(self, char: str) -> None:
        if char in JSON_SPACE:
            return
        key = self._word.text
        self._is_plan |= key in PLAN_KEYS
        if key == "next_action":
            self._begin_word(trims=True)
            self.is_settled = char != '"'
        else:
            self._pass_value(char)

    def _pass_value(self, char: str) -> None:
        self._floor = 1
        if char == '"':
            self._step = self._passing_text
        elif char in FOLLOWS:
            self._again(self._passing, char)
        else:
            self._again(self._passing_scalar, char)

    def _passing_scalar(self, char: str) -> None:
        if char in ",}" or char in JSON_SPACE:
            self._again(self._after_value, char)
        elif char in '"{[]':
            self._lost(char)

    def _after_value(self, char: str) -> None:
        if char in JSON_SPACE:
            return
        if char == ",":
            self._step = self._before_key
        elif char == "}":
            self._end()
        else:
            self._lost(char)

    # A key, or the one value that counts

    def _begin_word(self, *, trims: bool) -> None:
        self._word = ShortWord(longest=LONGEST, trims=trims)
        self._step = self._in_value if trims else self._in_key

    def _in_key(self, char: str) -> None:
        self._word.feed(char)
        if self._word.is_closed:
            self._step = self._before_colon

    def _in_value(self, char: str) -> None:
        self._word.feed(char)
        if self._word.is_closed:
            self.is_response = action_in(self._word.text) is NextAction.RESPONSE
            self.is_settled = True
