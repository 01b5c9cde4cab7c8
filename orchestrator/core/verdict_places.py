"""Which verdict has a meaning in which phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.state_updates import SetState
from chordage.orchestrator.core.verdicts import (
    AddContextMessage,
    AddMessage,
    AmendArguments,
    AmendResult,
    Block,
    Exclude,
    Given,
    IncludeOnly,
    OverrideModel,
    OverrideParams,
    SupplyResult,
    SuspendCall,
    Terminate,
    Verdict,
)


class MisplacedVerdict(ChordageError):
    """A plugin's verdict has no meaning in the phase in which it was given."""


ALLOWED: Mapping[Hook, tuple[type[Verdict], ...]] = {
    Hook.RUN_START: (SetState,),
    Hook.STEP_START: (SetState,),
    Hook.BEFORE_INFERENCE: (
        AddContextMessage,
        IncludeOnly,
        Exclude,
        OverrideModel,
        OverrideParams,
        Terminate,
        SetState,
    ),
    Hook.AFTER_INFERENCE: (Terminate, SetState),
    Hook.STEP_END: (SetState,),
    Hook.BEFORE_TOOL_EXECUTE: (Block, SuspendCall, SupplyResult, AmendArguments, SetState),
    Hook.AFTER_TOOL_EXECUTE: (AddMessage, AmendResult, SetState),
    Hook.RUN_END: (SetState,),
}
_ABOUT_A_CALL = frozenset({Hook.BEFORE_TOOL_EXECUTE, Hook.AFTER_TOOL_EXECUTE})


def check_place(hook: Hook, plugin: str, verdict: Verdict) -> None:
    """Raises MisplacedVerdict for one that means nothing in that phase."""
    if not isinstance(verdict, ALLOWED[hook]):
        there = ", ".join(kind.__name__ for kind in ALLOWED[hook])
        raise MisplacedVerdict(
            f"plugin {plugin!r} gave {type(verdict).__name__} in {hook}, where it means nothing; {hook} takes {there}"
        )
    if isinstance(verdict, SetState) and verdict.scope is Scope.CALL and hook not in _ABOUT_A_CALL:
        raise MisplacedVerdict(
            f"plugin {plugin!r} noted {verdict.key!r} for a call in {hook}, which is about no call; "
            "use scope run or thread"
        )


def check_places(hook: Hook, given: Iterable[Given]) -> None:
    for plugin, verdict in given:
        check_place(hook, plugin, verdict)


def is_verdict(value: object) -> bool:
    return isinstance(value, get_args(Verdict))
