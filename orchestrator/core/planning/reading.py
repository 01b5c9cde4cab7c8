"""The JSON object a planner wrote, wherever it stands in its reply: bare, in a fence, or between sentences.

Nothing is completed or guessed. An object that was cut off is none at all, and what stands inside it is not looked at:
half a plan would run half of what was meant, and a command's own arguments would pass for a plan. The rules by which
an object begins and ends are those of `short_circuit`, so that a reply means the same streamed and whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from chordage.orchestrator.core.planning.plan import Command, NextAction, Note, NoteKind, PlanDecision, PlanEnd
from chordage.orchestrator.core.text import clean_json, loads_json

LISTS = ("execution_commands", "tool_commands")
PLAN_KEYS = frozenset({"next_action", "use_tool", "tool_command", *LISTS})
JSON_SPACE = " \t\n\r"
# After these the bracket is JSON; before anything else it is prose, as in {name} or [see below].
FOLLOWS = {"{": '"}', "[": '{["]-0123456789tfn'}
DEPTH_MAX = 100

_BEGIN = re.compile(r'\{(?=[ \t\n\r]*["}])|\[(?=[ \t\n\r]*[{\["\]\-0-9tfn])')
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)
_STEP = {"{": 1, "[": 1, "}": -1, "]": -1}


def plan_in(text: str) -> dict[str, Any] | None:
    """The first object that has a key of a plan, else the first object of all; none when there is none that is
    complete.
    """
    first: dict[str, Any] | None = None
    for source in _outermost(text):
        value = _parsed(source)
        if isinstance(value, dict):
            if value.keys() & PLAN_KEYS:
                return value
            first = value if first is None else first
    return first


def storable_object(value: dict[Any, Any]) -> dict[str, Any] | None:
    """The object as a database can keep it; None when it is not JSON, or is nested beyond reason."""
    try:
        written = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return dict(clean_json(value)) if _end_of_value(written, 0)[1] <= DEPTH_MAX else None


def load(source: str) -> Any:
    """A JSON value that can be stored and written again. Raises ValueError.

    Line breaks inside strings are let through: models write them, and nobody can take them for anything else.
    """
    if _end_of_value(source, 0)[1] > DEPTH_MAX:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    value = loads_json(source, strict=False, object_pairs_hook=_first_wins)
    return clean_json(value)


def _outermost(text: str) -> Iterator[str]:
    """Every object and list that stands in no other. The last may lack its end."""
    at = 0
    while begin := _BEGIN.search(text, at):
        at, _ = _end_of_value(text, begin.start())
        yield text[begin.start() : at]


def _end_of_value(text: str, start: int) -> tuple[int, int]:
    """Where it ends, and how deep it goes."""
    depth = deepest = 0
    for token in _TOKEN.finditer(text, start):
        depth += _STEP.get(token[0], 0)
        deepest = max(deepest, depth)
        if depth == 0:
            return token.end(), deepest
    return len(text), deepest


def _parsed(source: str) -> Any:
    try:
        return load(source)
    except ValueError:
        return None


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that is there twice: what was acted upon in the stream must hold in the whole."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found


# Whether a streamed planner says `response`, known as soon as the closing quote of that word has come.
#
# Waiting for the rest would cost the time of a whole plan that nobody reads. The text is read once, character by
# character, in constant memory, and wherever it was cut into deltas. Only `next_action` of the plan itself counts: not
# one inside a command's arguments, not one that is only talked about in a string, not the second of two. Where the text
# is not built like JSON nothing is found: a plan that is not cut short costs time, one that is cut wrongly the plan.

LONGEST = max(map(len, PLAN_KEYS))


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


# A JSON string that comes character by character, of which it only matters whether it is one of a few short words.

_UNESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = frozenset("0123456789abcdefABCDEF")


class ShortWord:
    """Fed what follows the opening quote. No more is kept than `longest` characters, and of padding nothing."""

    __slots__ = ("_code", "_gap", "_longest", "_read", "_spoiled", "_step", "_trims", "is_closed")

    def __init__(self, *, longest: int, trims: bool) -> None:
        self.is_closed = False
        self._longest, self._trims = longest, trims
        self._read, self._code = "", ""
        self._gap = self._spoiled = False
        self._step: Callable[[str], None] = self._inside

    @property
    def text(self) -> str:
        """Blank where it is too long to be any of the words, or is no JSON string."""
        return "" if self._spoiled else self._read

    def feed(self, char: str) -> None:
        self._step(char)

    def _inside(self, char: str) -> None:
        if char == "\\":
            self._step = self._escaped
        elif char == '"':
            self.is_closed = True
        else:
            self._take(char)

    def _escaped(self, char: str) -> None:
        if char == "u":
            self._code, self._step = "", self._coded
        elif char in _UNESCAPED:
            self._take(_UNESCAPED[char])
            self._step = self._inside
        else:
            self._spoiled, self._step = True, self._inside

    def _coded(self, char: str) -> None:
        if char not in _HEX:
            self._spoiled, self._step = True, self._inside
            self._inside(char)
            return
        self._code += char
        if len(self._code) == 4:
            self._take(chr(int(self._code, 16)))
            self._step = self._inside

    def _take(self, char: str) -> None:
        if self._trims and char.isspace():
            self._gap = bool(self._read)
        elif self._gap or len(self._read) >= self._longest:
            self._spoiled = True
        else:
            self._read += char


# From whatever a planner returned to a decision; total, and the same for the same input for ever.
#
# Every rule here is known to stored plans by its version: change a rule, raise the number. Three things differ from
# what planners of this kind are used to: `next_action` is trimmed, so that a padded "response" is one; an empty list
# gives way to the next key; and whatever is dropped, repaired or passed over leaves a note.

NORMALISER_VERSION = 2
SHOWN = 80  # characters of what was wrong that a note keeps
HINTS = ("todo_suggestion", "next")
KEYS_OF_COMMAND = ("purpose", "tool_name", "tool_kwargs", *HINTS)
KEYS_OF_PLAN = (*sorted(PLAN_KEYS), *HINTS, "ends", "version", "notes")  # the last three: a decision sent back


def normalise(raw: object) -> PlanDecision:
    """`raw`: the text of a reply, or a JSON value. What holds no plan is a decision to answer."""
    notes: list[Note] = []
    plan = _plan_of(raw, notes)
    if plan is None:
        return _decision(PlanEnd.UNREADABLE, [], notes)
    notes += _unknown_keys(plan, KEYS_OF_PLAN, None)
    commands = _commands(plan, notes)
    return _decision(_end_of_plan(plan, commands, notes), commands, notes)


def cut_short() -> PlanDecision:
    """The decision of a planner that was stopped as soon as it had said `response`: nobody has read the rest."""
    return _decision(PlanEnd.RESPONSE, [], [Note(kind=NoteKind.CUT_SHORT)])


def _decision(ends: PlanEnd | None, commands: list[Command], notes: list[Note]) -> PlanDecision:
    if ends is not None and commands:
        notes.append(Note(kind=NoteKind.COMMANDS_UNUSED, detail=f"{len(commands)} of them: {ends.value}"))
    kept = () if ends is not None else tuple(commands)
    return PlanDecision(commands=kept, ends=ends, version=NORMALISER_VERSION, notes=tuple(notes))


def _plan_of(raw: object, notes: list[Note]) -> dict[str, Any] | None:
    plan = plan_in(raw) if isinstance(raw, str) else raw
    if not isinstance(plan, dict):
        missing = NoteKind.NO_JSON_OBJECT if isinstance(raw, str) else NoteKind.NOT_AN_OBJECT
        notes.append(Note(kind=missing, detail=_kind(raw)))
        return None
    fit = storable_object(plan)
    if fit is None:
        notes.append(Note(kind=NoteKind.NOT_STORABLE))
    return fit


def _end_of_plan(plan: dict[str, Any], commands: list[Command], notes: list[Note]) -> PlanEnd | None:
    action = _stated(plan.get("next_action"), notes)
    use_tool = plan.get("use_tool")
    if use_tool is not None and not isinstance(use_tool, bool):
        notes.append(Note(kind=NoteKind.USE_TOOL_IGNORED, detail=_shown(use_tool)))
    if action is NextAction.RESPONSE:
        return PlanEnd.RESPONSE
    if use_tool is False:
        return PlanEnd.USE_TOOL_FALSE
    return None if commands else PlanEnd.NO_COMMANDS


def _stated(value: object, notes: list[Note]) -> NextAction | None:
    """None: it says nothing that is known, and the commands speak for themselves."""
    said = action_in(value)
    if said is None:
        notes.append(Note(kind=NoteKind.ACTION_INFERRED, detail="missing" if value is None else _shown(value)))
    elif value != said.value:
        notes.append(Note(kind=NoteKind.ACTION_RESPELLED, detail=_shown(value)))
    return said


def action_in(value: object) -> NextAction | None:
    said = value.strip().lower() if isinstance(value, str) else ""
    return NextAction(said) if said in set(NextAction) else None


def _commands(plan: dict[str, Any], notes: list[Note]) -> list[Command]:
    hint = _text(plan.get("todo_suggestion"), plan.get("next"), blank_counts=True)
    key = _list_key(plan, notes)
    read = [_command(one, hint, place, notes) for place, one in enumerate(plan[key] if key else ())]
    found = [command for command in read if command is not None]
    single = plan.get("tool_command")
    if single is None:
        return found
    if found:
        notes.append(Note(kind=NoteKind.KEY_IGNORED, detail="tool_command"))
        return found
    return _single(single, hint, notes)


def _single(value: object, hint: str, notes: list[Note]) -> list[Command]:
    if not isinstance(value, dict):
        notes.append(_wrong_container("tool_command", value))
        return []
    notes.append(Note(kind=NoteKind.OLDER_KEY, detail="tool_command"))
    command = _command(value, hint, None, notes)
    return [] if command is None else [command]


def _list_key(plan: dict[str, Any], notes: list[Note]) -> str | None:
    """The first key that holds commands. It is not looked at whether any of them can be read."""
    chosen = None
    for key in LISTS:
        match plan.get(key):
            case None:
                pass
            case list() as found if not found:
                notes.append(Note(kind=NoteKind.EMPTY_LIST_PASSED_OVER, detail=key))
            case list() if chosen is not None:
                notes.append(Note(kind=NoteKind.KEY_IGNORED, detail=key))
            case list():
                chosen = key
            case other:
                notes.append(_wrong_container(key, other))
    if chosen == "tool_commands":
        notes.append(Note(kind=NoteKind.OLDER_KEY, detail=chosen))
    return chosen


def _command(value: object, hint: str, place: int | None, notes: list[Note]) -> Command | None:
    if not isinstance(value, dict):
        notes.append(Note(kind=NoteKind.COMMAND_DROPPED, place=place, detail=f"it is {_kind(value)}, not an object"))
        return None
    name = value.get("tool_name")
    if not isinstance(name, str) or not name.strip():
        notes.append(Note(kind=NoteKind.COMMAND_DROPPED, place=place, detail=f"its tool_name is {_shown(name)}"))
        return None
    notes += _unknown_keys(value, KEYS_OF_COMMAND, place)
    purpose = _text(value.get("purpose"))
    if not purpose:
        notes.append(Note(kind=NoteKind.PURPOSE_FILLED, place=place, detail=_shown(value.get("purpose"))))
    return Command(
        purpose=purpose or f"Use {name}",
        tool_name=name,
        kwargs=_kwargs(value, place, notes),
        todo_suggestion=_text(value.get("todo_suggestion"), value.get("next"), hint),
    )


def _unknown_keys(value: dict[str, Any], known: Sequence[str], place: int | None) -> list[Note]:
    """Keys that nothing reads, each with the one that was probably meant."""
    return [
        Note(kind=NoteKind.KEY_UNKNOWN, place=place, detail=_meant(key, known)) for key in value if key not in known
    ]


def _meant(key: str, known: Sequence[str]) -> str:
    close = [name for name in known if name.endswith(f"_{key}")] or get_close_matches(key, known, 1)
    return f"{_shown(key)}; did you mean {close[0]}?" if close else _shown(key)


def _kwargs(value: dict[str, Any], place: int | None, notes: list[Note]) -> dict[str, Any]:
    given = value.get("tool_kwargs", {})
    if isinstance(given, dict):
        return given
    notes.append(Note(kind=NoteKind.KWARGS_REPLACED, place=place, detail=_shown(given)))
    return {}


def _text(*candidates: object, blank_counts: bool = False) -> str:
    """The first that is text; one that is blank only where that was meant to say something."""
    texts = (one for one in candidates if isinstance(one, str) and (blank_counts or one.strip()))
    return next(texts, "")


def _wrong_container(key: str, value: object) -> Note:
    return Note(kind=NoteKind.WRONG_CONTAINER, detail=f"{key} is {_kind(value)}")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _shown(value: object) -> str:
    """A part of it: what a planner sends may be long, and nested without end."""
    match value:
        case str():
            return repr(value) if len(value) <= SHOWN else f"{value[:SHOWN]!r}..."
        case int() | float():
            return repr(value)[:SHOWN]
        case _:
            return _kind(value)
