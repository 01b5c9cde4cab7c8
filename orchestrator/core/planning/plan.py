"""What a planner decided, once it has been read: commands to carry out, or the reason why there are none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class NextAction(StrEnum):
    EXECUTE = "execute"
    RESPONSE = "response"


class PlanEnd(StrEnum):
    """Why planning is over and the answer is due; each has a name of its own, so that a person can tell them apart."""

    RESPONSE = "response"  # the planner says so
    USE_TOOL_FALSE = "use_tool_false"  # the planner wants no tool
    NO_COMMANDS = "no_commands"  # nothing to carry out, or nothing that could be read as a command
    UNREADABLE = "unreadable"  # what the planner sent holds no plan, or only the beginning of one
    TOOLS_OFF = "tools_off"  # the planner is not asked at all
    NO_TOOLS = "no_tools"  # nor where there is nothing to plan with
    MAX_ROUNDS = "max_rounds"
    DEADLINE = "deadline"
    STUCK = "stuck"  # the same tool failed in two rounds running, and nothing succeeded in them
    NOT_OFFERED = "not_offered"  # a command was out of scope, and the agent refuses such a batch as a whole
    PLANNER_ERROR = "planner_error"  # every attempt to ask the planner failed


class NoteKind(StrEnum):
    """What was repaired, dropped or passed over when a plan was read. Nothing of it happens in silence."""

    NOT_AN_OBJECT = "not_an_object"
    NO_JSON_OBJECT = "no_json_object"
    NOT_STORABLE = "not_storable"  # no JSON, or nested beyond reason
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
    place: int | None = None  # in the planner's own list

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind.value, "detail": self.detail, "place": self.place}


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One tool call of a plan. `todo_suggestion` is the planner's hint to itself for the round after."""

    purpose: str
    tool_name: str
    kwargs: dict[str, Any]
    todo_suggestion: str = ""

    @property
    def next(self) -> str:
        return self.todo_suggestion

    def as_json(self) -> dict[str, Any]:
        return {
            "purpose": self.purpose,
            "tool_name": self.tool_name,
            "tool_kwargs": self.kwargs,
            "todo_suggestion": self.todo_suggestion,
            "next": self.next,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanDecision:
    """`version`: of the normaliser that read it, for a plan is read once and kept as it was understood then."""

    commands: tuple[Command, ...]
    ends: PlanEnd | None  # None: the commands are to be carried out
    version: int
    notes: tuple[Note, ...] = ()

    @property
    def next_action(self) -> NextAction:
        return NextAction.EXECUTE if self.ends is None else NextAction.RESPONSE

    @property
    def use_tool(self) -> bool:
        return self.ends is None

    def as_json(self) -> dict[str, Any]:
        """As it is stored and shown. A consumer may send it back, changed: the normaliser reads it."""
        return {
            "next_action": self.next_action.value,
            "use_tool": self.use_tool,
            "execution_commands": [command.as_json() for command in self.commands],
            "ends": None if self.ends is None else self.ends.value,
            "version": self.version,
            "notes": [note.as_json() for note in self.notes],
        }


def decision_from(body: dict[str, Any]) -> PlanDecision:
    """A stored decision as it was understood when it was made, whatever the normaliser would say today."""
    return PlanDecision(
        commands=tuple(_command_from(one) for one in body["execution_commands"]),
        ends=None if body["ends"] is None else PlanEnd(body["ends"]),
        version=body["version"],
        notes=tuple(
            Note(kind=NoteKind(one["kind"]), detail=one["detail"], place=one["place"]) for one in body["notes"]
        ),
    )


def _command_from(body: dict[str, Any]) -> Command:
    return Command(
        purpose=body["purpose"],
        tool_name=body["tool_name"],
        kwargs=body["tool_kwargs"],
        todo_suggestion=body["todo_suggestion"],
    )
