"""What of a view a caller may see. Without the scope `payloads` it sees states, times, names and counts, and every
text, argument and result is null.

Each part of an answer that has such fields says which of the two it is: `payloads` is false where they are null.
What is wrong with a file of the room, and where that file is, is for callers who operate the fleet: others read that
it is broken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pydantic.dataclasses

from chordage.orchestrator.api import problems
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.model import ToolAsk
from chordage.orchestrator.views import OpenQuestion, ResultView, TurnView
from chordage.orchestrator.views.approvals import AnswerView, QuestionView
from chordage.orchestrator.views.bulk import BulkView
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.channels import ChannelView, RefusedMessage
from chordage.orchestrator.views.comparison import ComparedMoment
from chordage.orchestrator.views.deliveries import DeliveryView
from chordage.orchestrator.views.exports import FullResult
from chordage.orchestrator.views.hooks import HookView
from chordage.orchestrator.views.pulse import StandingItem, StandingWork
from chordage.orchestrator.views.runs import (
    AttemptView,
    CompactionStep,
    ConsumerSteerStep,
    InferenceStep,
    Interruption,
    PlanView,
    PushedStep,
    RunView,
    SteeredStep,
)
from chordage.orchestrator.views.stepped import HeldCall, HeldPlan, HeldReply, HeldRound, SteppedView
from chordage.orchestrator.views.threads import Remark
from chordage.orchestrator.views.trace import TraceEvent, TraceView
from chordage.orchestrator.views.turns import TurnLine

PAYLOADS = "payloads"

# The fields of each view that are null for a caller without the scope.
HIDDEN: Mapping[type, frozenset[str]] = {
    TurnView: frozenset({"text", "meta", "answer", "output", "detail"}),
    TurnLine: frozenset({"text"}),
    OpenQuestion: frozenset({"arguments", "prompt", "schema"}),
    QuestionView: frozenset({"prompt", "schema"}),
    AnswerView: frozenset({"payload", "edited_args", "reason"}),
    CallView: frozenset({"arguments", "content", "progress"}),
    ResultView: frozenset({"text"}),
    FullResult: frozenset({"text"}),
    RunView: frozenset({"detail", "extra"}),
    AttemptView: frozenset({"detail"}),
    PlanView: frozenset({"decision"}),
    InferenceStep: frozenset({"text", "reasoning", "refused"}),
    SteeredStep: frozenset({"text"}),
    PushedStep: frozenset({"messages"}),
    ConsumerSteerStep: frozenset({"texts"}),
    CompactionStep: frozenset({"summary", "why_not"}),
    Interruption: frozenset({"detail"}),
    Remark: frozenset({"text"}),
    ComparedMoment: frozenset({"text", "arguments", "content"}),
    TraceView: frozenset({"why", "left"}),
    TraceEvent: frozenset({"text"}),
    ToolAsk: frozenset({"arguments", "raw"}),
    HeldReply: frozenset({"text"}),
    HeldCall: frozenset({"content"}),
    HeldPlan: frozenset({"commands", "refused", "notes"}),
    HeldRound: frozenset({"records"}),
    SteppedView: frozenset({"pending", "steers", "verdicts", "params", "error", "detail", "answer"}),
    DeliveryView: frozenset({"target", "error"}),
    ChannelView: frozenset({"error", "cursor"}),
    RefusedMessage: frozenset({"why", "excerpt"}),
    BulkView: frozenset({"filter", "query", "reason"}),
    StandingItem: frozenset({"title"}),
}
# The fields of each view that say what is wrong with a file of the room.
FAULTS: Mapping[type, str] = {ChannelView: "fault", HookView: "fault", StandingWork: "faults"}
# Properties of a view that are part of the answer. They are made of texts.
PROPERTIES: Mapping[type, Mapping[str, Any]] = {SteppedView: {"tool_response": list[dict[str, Any]] | None}}
# A turn that was merged into another has the whole trace of that one inside its own: it has an address for that.
LEFT_OUT: Mapping[type, frozenset[str]] = {TraceView: frozenset({"follows"})}


def may_see_payloads(caller: Caller) -> bool:
    return KeyScope.PAYLOADS in caller.scopes


def show(view: Any, caller: Caller) -> Any:
    """The answer to this caller, as `model_of` describes it."""
    return _plain(view, caller)


def show_all(views: Sequence[Any], caller: Caller) -> list[Any]:
    return [show(view, caller) for view in views]


def _plain(value: Any, caller: Caller) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        view, visible = type(value), may_see_payloads(caller)
        hidden = HIDDEN.get(view, frozenset())
        shown = {
            name: _plain(getattr(value, name), caller) if visible or name not in hidden else None
            for name in _names(view)
        }
        if (faults := FAULTS.get(view)) is not None and not caller.sees_room and shown[faults]:
            shown[faults] = [problems.BROKEN] if isinstance(shown[faults], list) else problems.BROKEN
        shown |= {name: getattr(value, name) if visible else None for name in PROPERTIES.get(view, ())}
        return {**shown, PAYLOADS: visible} if hidden else shown
    if isinstance(value, list | tuple):
        return [_plain(each, caller) for each in value]
    return value


def _names(view: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(view) if field.name not in LEFT_OUT.get(view, ())]


@cache
def model_of(view: Any) -> Any:
    """The type of the answer: the view, whose hidden fields may be null, and `payloads`. Of a union: one of these."""
    if not isinstance(view, type):
        return Union[tuple(model_of(each) for each in get_args(view))]  # noqa: UP007 - made of a tuple
    hints, hidden = get_type_hints(view), HIDDEN.get(view, frozenset())
    defaults = {field.name: field.default for field in dataclasses.fields(view)}
    fields: list[tuple[str, Any]] = []
    for name in _names(view):
        default = defaults[name]
        # A step says its kind by a default: as a literal it tells the steps of a run apart.
        hint = Literal[default] if name == "kind" and isinstance(default, Enum) else _converted(hints[name])
        fields.append((name, hint | None if name in hidden and hint is not Any else hint))
    if fields == list(hints.items()) and not hidden:
        return view
    fields += PROPERTIES.get(view, {}).items()
    fields += [(PAYLOADS, bool)] if hidden else []
    is_written = view.__doc__ is not None and not view.__doc__.startswith(f"{view.__name__}(")
    body = {"__annotations__": dict(fields), "__doc__": view.__doc__ if is_written else None, "__module__": __name__}
    # Pydantic keeps the schema with such a class. Of a plain one it would make it anew in each place that names it.
    return pydantic.dataclasses.dataclass(frozen=True, kw_only=True)(type(view.__name__, (), body))


def _converted(hint: Any) -> Any:
    """The type with the models of all views inside it."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return model_of(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None or origin is Literal:
        return hint
    converted = tuple(_converted(argument) for argument in arguments)
    return Union[converted] if origin in {Union, UnionType} else origin[converted]  # noqa: UP007 - made of a tuple
