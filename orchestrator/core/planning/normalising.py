"""From whatever a planner returned to a decision; total, and the same for the same input for ever.

Every rule here is known to stored plans by its version: change a rule, raise the number. Three things differ from what
planners of this kind are used to: `next_action` is trimmed, so that a padded "response" is one; an empty list gives way
to the next key; and whatever is dropped, repaired or passed over leaves a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from chordage.orchestrator.core.planning import reading
from chordage.orchestrator.core.planning.plan import Command, NextAction, Note, NoteKind, PlanDecision, PlanEnd

NORMALISER_VERSION = 2
SHOWN = 80  # characters of what was wrong that a note keeps
HINTS = ("todo_suggestion", "next")
KEYS_OF_COMMAND = ("purpose", "tool_name", "tool_kwargs", *HINTS)
KEYS_OF_PLAN = (*sorted(reading.PLAN_KEYS), *HINTS, "ends", "version", "notes")  # the last three: a decision sent back


def normalise(raw: object) -> PlanDecision:
    """`raw`: the text of a reply, or a JSON value. What holds no plan is a decision to answer."""
    notes: list[Note] = []
    plan = _plan_of(raw, notes)
    if plan is None:
        return _decision(PlanEnd.UNREADABLE, [], notes)
    notes += _unknown_keys(plan, KEYS_OF_PLAN, None)
    commands = _commands(plan, notes)
    return _decision(_end(plan, commands, notes), commands, notes)


def cut_short() -> PlanDecision:
    """The decision of a planner that was stopped as soon as it had said `response`: nobody has read the rest."""
    return _decision(PlanEnd.RESPONSE, [], [Note(kind=NoteKind.CUT_SHORT)])


def _decision(ends: PlanEnd | None, commands: list[Command], notes: list[Note]) -> PlanDecision:
    if ends is not None and commands:
        notes.append(Note(kind=NoteKind.COMMANDS_UNUSED, detail=f"{len(commands)} of them: {ends.value}"))
    kept = () if ends is not None else tuple(commands)
    return PlanDecision(commands=kept, ends=ends, version=NORMALISER_VERSION, notes=tuple(notes))


def _plan_of(raw: object, notes: list[Note]) -> dict[str, Any] | None:
    plan = reading.plan_in(raw) if isinstance(raw, str) else raw
    if not isinstance(plan, dict):
        missing = NoteKind.NO_JSON_OBJECT if isinstance(raw, str) else NoteKind.NOT_AN_OBJECT
        notes.append(Note(kind=missing, detail=_kind(raw)))
        return None
    fit = reading.storable_object(plan)
    if fit is None:
        notes.append(Note(kind=NoteKind.NOT_STORABLE))
    return fit


def _end(plan: dict[str, Any], commands: list[Command], notes: list[Note]) -> PlanEnd | None:
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
    for key in reading.LISTS:
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
