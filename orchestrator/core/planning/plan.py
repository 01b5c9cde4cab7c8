"""A planner's decision: the commands of the next round, or the reason why planning is over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class NextAction(StrEnum):
    EXECUTE = "execute"
    RESPONSE = "response"


class PlanEnd(StrEnum):
    """Why planning is over and the answer is due."""

    RESPONSE = "response"  # the planner says so
    USE_TOOL_FALSE = "use_tool_false"  # the planner wants no tool
    NO_COMMANDS = "no_commands"  # the plan has no command, or none that can be read
    UNREADABLE = "unreadable"  # the reply holds no plan, or only the beginning of one
    NO_TOOLS = "no_tools"  # no tool is offered, so the planner is not asked
    MAX_ROUNDS = "max_rounds"
    DEADLINE = "deadline"
    STUCK = "stuck"  # the same tool failed in two rounds in a row, and no call succeeded in them
    NOT_OFFERED = "not_offered"  # a command was out of scope, and the agent refuses such a batch as a whole
    PLANNER_ERROR = "planner_error"  # every attempt to ask the planner failed


class NoteKind(StrEnum):
    """What was repaired, dropped or ignored when a plan was read. Each case leaves a note."""

    NOT_AN_OBJECT = "not_an_object"
    NO_JSON_OBJECT = "no_json_object"
    NOT_STORABLE = "not_storable"  # not JSON, or nested too deep
    ACTION_RESPELLED = "action_respelled"
    ACTION_INFERRED = "action_inferred"
    USE_TOOL_IGNORED = "use_tool_ignored"
    WRONG_CONTAINER = "wrong_container"
    EMPTY_LIST_PASSED_OVER = "empty_list_passed_over"
    OLDER_KEY = "older_key"
    KEY_IGNORED = "key_ignored"
    KEY_UNKNOWN = "key_unknown"
    COMMAND_DROPPED = "command_dropped"
    PURPOSE_FILLED = "purpose_filled"
    KWARGS_REPLACED = "kwargs_replaced"
    COMMANDS_UNUSED = "commands_unused"
    CUT_SHORT = "cut_short"


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    kind: NoteKind
    detail: str = ""
    place: int | None = None  # of the command, in the planner's own list

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind.value, "detail": self.detail, "place": self.place}


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One tool call of a plan. `todo_suggestion` is the planner's hint to itself for the next round."""

    purpose: str
    tool_name: str
    kwargs: dict[str, Any]
    todo_suggestion: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "purpose": self.purpose,
            "tool_name": self.tool_name,
            "tool_kwargs": self.kwargs,
            "todo_suggestion": self.todo_suggestion,
            "next": self.todo_suggestion,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanDecision:
    """`version` is that of the normaliser which read the plan: it is read once and stored as it was understood then."""

    commands: tuple[Command, ...]
    ends: PlanEnd | None  # None: the commands are to be carried out
    version: int
    notes: tuple[Note, ...] = ()

    @property
    def next_action(self) -> NextAction:
        return NextAction.EXECUTE if self.ends is None else NextAction.RESPONSE

    def as_json(self) -> dict[str, Any]:
        """As it is stored and shown. A consumer may send it back, changed: the normaliser reads it."""
        return {
            "next_action": self.next_action.value,
            "use_tool": self.ends is None,
            "execution_commands": [command.as_json() for command in self.commands],
            "ends": None if self.ends is None else self.ends.value,
            "version": self.version,
            "notes": [note.as_json() for note in self.notes],
        }


def decision_from(body: dict[str, Any]) -> PlanDecision:
    """A stored decision as it was understood when it was made, even if today's normaliser would read it otherwise."""
    return PlanDecision(
        commands=tuple(
            Command(
                purpose=command["purpose"],
                tool_name=command["tool_name"],
                kwargs=command["tool_kwargs"],
                todo_suggestion=command["todo_suggestion"],
            )
            for command in body["execution_commands"]
        ),
        ends=None if body["ends"] is None else PlanEnd(body["ends"]),
        version=body["version"],
        notes=tuple(
            Note(kind=NoteKind(note["kind"]), detail=note["detail"], place=note["place"]) for note in body["notes"]
        ),
    )
