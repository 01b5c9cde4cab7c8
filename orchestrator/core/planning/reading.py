"""What a planner wrote, read as a decision: from the whole reply, and from a stream as soon as it says `response`.

`normalise` takes the text of a reply or a JSON value and never raises. The same input gives the same decision for ever:
stored plans name the version that read them, so a change of a rule raises NORMALISER_VERSION.

In a text, the plan is the first JSON object with a key of a plan: bare, in a fence, or between sentences. Nothing is
completed or guessed. An object that was cut off is no plan, and the objects inside it are not searched: half a plan
would run half of what was meant, and the arguments of a command would pass for a plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.planning.plan import Command, NextAction, Note, NoteKind, PlanDecision, PlanEnd
from chordage.orchestrator.core.text import clean_json, loads_json

NORMALISER_VERSION = 2
LISTS = ("execution_commands", "tool_commands")
PLAN_KEYS = frozenset({"next_action", "use_tool", "tool_command", *LISTS})
HINTS = ("todo_suggestion", "next")
KEYS_OF_COMMAND = ("purpose", "tool_name", "tool_kwargs", *HINTS)
KEYS_OF_PLAN = (*sorted(PLAN_KEYS), *HINTS, "ends", "version", "notes")  # the last three: a decision sent back
SHOWN = 80  # characters of a wrong value that a note keeps

# An outermost value begins at a bracket that JSON may follow; any other is prose, as in {name} or [see below].
_BEGIN = re.compile(r'\{(?=[ \t\n\r]*["}])|\[(?=[ \t\n\r]*[{\["\]\-0-9tfn])')
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)
_STEP = {"{": 1, "[": 1, "}": -1, "]": -1}


def normalise(raw: object) -> PlanDecision:
    """A reply that holds no plan is a decision to answer."""
    return _Normaliser().decide(raw)


def cut_short() -> PlanDecision:
    """The decision of a planner whose stream was closed at `response`: the rest of its plan is unknown."""
    notes = (Note(kind=NoteKind.CUT_SHORT),)
    return PlanDecision(commands=(), ends=PlanEnd.RESPONSE, version=NORMALISER_VERSION, notes=notes)


def action_in(value: object) -> NextAction | None:
    word = value.strip().lower() if isinstance(value, str) else ""
    return NextAction(word) if word in set(NextAction) else None


class _Normaliser:
    """Reads one plan. Whatever it repairs, drops or ignores leaves a note.

    It differs from other planners of this kind in two repairs: a padded "response" is one, and an empty list gives way
    to the next key.
    """

    def __init__(self) -> None:
        self._notes: list[Note] = []

    def decide(self, raw: object) -> PlanDecision:
        plan = self._plan(raw)
        end: PlanEnd | None = PlanEnd.UNREADABLE
        commands: list[Command] = []
        if plan is not None:
            self._note_unknown_keys(plan, KEYS_OF_PLAN)
            commands = self._commands(plan)
            end = self._end(plan, commands)
        if end is not None and commands:
            self._note(NoteKind.COMMANDS_UNUSED, f"{len(commands)} of them: {end.value}")
        return PlanDecision(
            commands=tuple(commands) if end is None else (),
            ends=end,
            version=NORMALISER_VERSION,
            notes=tuple(self._notes),
        )

    def _note(self, kind: NoteKind, detail: str = "", place: int | None = None) -> None:
        self._notes.append(Note(kind=kind, detail=detail, place=place))

    def _plan(self, raw: object) -> dict[str, Any] | None:
        plan = plan_in(raw) if isinstance(raw, str) else raw
        if not isinstance(plan, dict):
            self._note(NoteKind.NO_JSON_OBJECT if isinstance(raw, str) else NoteKind.NOT_AN_OBJECT, _kind(raw))
            return None
        storable = _storable(plan)
        if storable is None:
            self._note(NoteKind.NOT_STORABLE)
        return storable

    def _end(self, plan: dict[str, Any], commands: Sequence[Command]) -> PlanEnd | None:
        stated, use_tool = plan.get("next_action"), plan.get("use_tool")
        action = action_in(stated)
        if action is None:
            self._note(NoteKind.ACTION_INFERRED, "missing" if stated is None else _shown(stated))
        elif stated != action.value:
            self._note(NoteKind.ACTION_RESPELLED, _shown(stated))
        if use_tool is not None and not isinstance(use_tool, bool):
            self._note(NoteKind.USE_TOOL_IGNORED, _shown(use_tool))
        if action is NextAction.RESPONSE:
            return PlanEnd.RESPONSE
        if use_tool is False:
            return PlanEnd.USE_TOOL_FALSE
        return None if commands else PlanEnd.NO_COMMANDS

    def _commands(self, plan: dict[str, Any]) -> list[Command]:
        hint = _first_text(plan.get("todo_suggestion"), plan.get("next"), blank_counts=True)
        key = self._list_key(plan)
        candidates = [self._command(value, hint, place) for place, value in enumerate(plan[key] if key else ())]
        commands = [command for command in candidates if command is not None]
        single = plan.get("tool_command")
        if single is None:
            return commands
        if commands:
            self._note(NoteKind.KEY_IGNORED, "tool_command")
            return commands
        if not isinstance(single, dict):
            self._note_container("tool_command", single)
            return []
        self._note(NoteKind.OLDER_KEY, "tool_command")
        command = self._command(single, hint, None)
        return [] if command is None else [command]

    def _list_key(self, plan: dict[str, Any]) -> str | None:
        """The first key that holds a list with members, even if none of them can be read as a command."""
        chosen = None
        for key in LISTS:
            match plan.get(key):
                case None:
                    pass
                case []:
                    self._note(NoteKind.EMPTY_LIST_PASSED_OVER, key)
                case list() if chosen is not None:
                    self._note(NoteKind.KEY_IGNORED, key)
                case list():
                    chosen = key
                case other:
                    self._note_container(key, other)
        if chosen == "tool_commands":
            self._note(NoteKind.OLDER_KEY, chosen)
        return chosen

    def _command(self, value: object, hint: str, place: int | None) -> Command | None:
        if not isinstance(value, dict):
            self._note(NoteKind.COMMAND_DROPPED, f"it is {_kind(value)}, not an object", place)
            return None
        name = value.get("tool_name")
        if not isinstance(name, str) or not name.strip():
            self._note(NoteKind.COMMAND_DROPPED, f"its tool_name is {_shown(name)}", place)
            return None
        self._note_unknown_keys(value, KEYS_OF_COMMAND, place)
        purpose = _first_text(value.get("purpose"))
        if not purpose:
            self._note(NoteKind.PURPOSE_FILLED, _shown(value.get("purpose")), place)
        kwargs = value.get("tool_kwargs", {})
        if not isinstance(kwargs, dict):
            self._note(NoteKind.KWARGS_REPLACED, _shown(kwargs), place)
            kwargs = {}
        suggestion = _first_text(value.get("todo_suggestion"), value.get("next"), hint)
        return Command(purpose=purpose or f"Use {name}", tool_name=name, kwargs=kwargs, todo_suggestion=suggestion)

    def _note_container(self, key: str, value: object) -> None:
        self._note(NoteKind.WRONG_CONTAINER, f"{key} is {_kind(value)}")

    def _note_unknown_keys(self, value: dict[str, Any], known: Sequence[str], place: int | None = None) -> None:
        """Keys that are not read, each with the one that was probably meant."""
        for key in value:
            if key not in known:
                close = [name for name in known if name.endswith(f"_{key}")] or get_close_matches(key, known, 1)
                meant = f"; did you mean {close[0]}?" if close else ""
                self._note(NoteKind.KEY_UNKNOWN, f"{_shown(key)}{meant}", place)


def _first_text(*candidates: object, blank_counts: bool = False) -> str:
    texts = (text for text in candidates if isinstance(text, str) and (blank_counts or text.strip()))
    return next(texts, "")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _shown(value: object) -> str:
    """A part of it: what a planner sends may be long and deeply nested."""
    match value:
        case str():
            return repr(value) if len(value) <= SHOWN else f"{value[:SHOWN]!r}..."
        case int() | float():
            return repr(value)[:SHOWN]
        case _:
            return _kind(value)


def plan_in(text: str) -> dict[str, Any] | None:
    """The first complete object that has a key of a plan, else the first complete object."""
    first: dict[str, Any] | None = None
    end = 0
    while begin := _BEGIN.search(text, end):
        end = _end_of_value(text, begin.start())
        try:
            value = load(text[begin.start() : end])
        except ValueError:
            continue
        if isinstance(value, dict):
            if value.keys() & PLAN_KEYS:
                return value
            first = value if first is None else first
    return first


def _end_of_value(text: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`; the end of the text where none does."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += _STEP.get(token[0], 0)
        if depth == 0:
            return token.end()
    return len(text)


def load(source: str) -> Any:
    """A JSON value that can be stored and written again. Raises ValueError.

    Of two equal keys the first wins, because a stream has been acted upon by then. Line breaks inside strings are
    accepted: models write them, and they have no other meaning.
    """
    return clean_json(loads_json(source, strict=False, object_pairs_hook=_first_wins))


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        members.setdefault(key, value)
    return members


def _storable(value: dict[Any, Any]) -> dict[str, Any] | None:
    """The object as a database can keep it; None when it is not JSON or is nested too deep."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return dict(clean_json(value)) if bounds.depth_of(value) <= bounds.DEEPEST else None


_OPENER = re.compile(r"[{\[]")
_CONTENT = re.compile(r"(?=[^ \t\n\r])")  # ends before the character, which is read once more
_FOLLOWS = {"{": '"}', "[": '{["]-0123456789tfn'}  # what _BEGIN asks for
_MARK = re.compile(r'["{}\[\],]')
_STRING_MARK = re.compile(r'["\\]')
_ESCAPED = re.compile(r".", re.DOTALL)


class ResponseWatch:
    """Watches a streamed reply for a plan whose `next_action` is `response`.

    The rest of such a plan is not used, so its stream can be closed at the closing quote of that word. Each delta is
    scanned once, for the marks between which the members of an outermost object lie; each member is parsed by `load`,
    so that a reply means the same streamed and whole. What is not JSON never counts: a plan that is not cut short
    costs time, one that is cut wrongly costs the plan.

    A parser of incomplete JSON (pydantic_core's `from_json(allow_partial=True)`) keeps neither promise: it would refuse
    the line breaks and lone surrogates that `load` accepts, let the last of two equal keys win, and read a growing text
    anew at each delta.
    """

    __slots__ = ("_depth", "_expected", "_is_plan", "_member", "_opener", "_strings", "is_response", "is_settled")

    def __init__(self) -> None:
        self.is_response = False  # the planner wants the answer
        self.is_settled = False  # nothing that follows can change that
        self._expected = _OPENER  # what is searched for next
        self._opener = ""
        self._depth = 0  # open brackets
        self._is_plan = False  # the object has a key of a plan
        self._member: list[str] | None = None  # the text of the current member; None where none counts
        self._strings = 0  # of the current member: its key, then its value if that is one

    def feed(self, delta: str) -> bool:
        at = 0
        while not self.is_settled and (mark := self._expected.search(delta, at)):
            self._keep(delta[at : mark.end()])
            at = mark.end()
            self._advance(delta[mark.start()])
        self._keep(delta[at:])
        return self.is_response

    def _keep(self, text: str) -> None:
        if self._member is not None:
            self._member.append(text)

    def _advance(self, char: str) -> None:
        if self._expected is _OPENER:
            self._opener, self._expected = char, _CONTENT
        elif self._expected is _CONTENT:
            self._begin_value(char)
        elif self._expected is _ESCAPED:
            self._expected = _STRING_MARK
        elif char == "\\":
            self._expected = _ESCAPED
        elif self._expected is _STRING_MARK:
            self._expected = _MARK
            self._end_string()
        elif char == '"':
            self._expected = _STRING_MARK
        else:
            self._read_mark(char)

    def _begin_value(self, char: str) -> None:
        if char not in _FOLLOWS[self._opener]:
            self._expected = _OPENER
            return
        self._expected, self._depth, self._is_plan, self._strings = _MARK, 1, False, 0
        self._member = [] if self._opener == "{" else None  # the members of a list do not count

    def _end_string(self) -> None:
        if self._member is None or self._depth > 1:
            return
        self._strings += 1
        if self._strings == 2:
            self._read_member("".join(self._member))

    def _read_mark(self, char: str) -> None:
        self._depth += _STEP.get(char, 0)
        if self._member is not None and (self._depth == 0 or (self._depth == 1 and char == ",")):
            if char != "]" and self._read_member("".join(self._member)[:-1]):
                self._member, self._strings = [], 0
            else:  # not JSON: of this object, nothing counts
                self._member, self._is_plan = None, False
        if self._depth == 0:
            self._member, self._expected = None, _OPENER
            self.is_settled |= self._is_plan

    def _read_member(self, source: str) -> bool:
        try:
            member = load(f"{{{source}}}")
        except ValueError:
            return False
        for key, value in member.items():
            self._is_plan |= key in PLAN_KEYS
            if key == "next_action":
                self.is_response = action_in(value) is NextAction.RESPONSE
                self.is_settled = True
        return bool(member)
