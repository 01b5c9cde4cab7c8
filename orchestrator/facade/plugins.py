"""What a plugin is made of: the class, what its hooks are shown, and what they may answer."""

from chordage.orchestrator.core.phases import (
    AfterInference,
    AfterToolExecute,
    BeforeInference,
    BeforeToolExecute,
    RunEnd,
    RunStart,
    Scope,
    StepEnd,
    StepStart,
)
from chordage.orchestrator.core.plugin_state import Merge, SetState
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.orchestrator.core.verdicts import (
    AddContextMessage,
    AddMessage,
    AmendArguments,
    AmendResult,
    Block,
    Exclude,
    IncludeOnly,
    OverrideModel,
    OverrideParams,
    SupplyResult,
    SuspendCall,
    Terminate,
)
from chordage.orchestrator.plugins.base import OptionRefused, Plugin, Verdicts

__all__ = [
    "AddContextMessage",
    "AddMessage",
    "AfterInference",
    "AfterToolExecute",
    "AmendArguments",
    "AmendResult",
    "BeforeInference",
    "BeforeToolExecute",
    "Block",
    "Ending",
    "Exclude",
    "IncludeOnly",
    "Merge",
    "OptionRefused",
    "OverrideModel",
    "OverrideParams",
    "Plugin",
    "Reason",
    "RunEnd",
    "RunStart",
    "Scope",
    "SetState",
    "StepEnd",
    "StepStart",
    "SupplyResult",
    "SuspendCall",
    "Terminate",
    "Verdicts",
]
