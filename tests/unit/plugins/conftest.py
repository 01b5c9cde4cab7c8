"""Contexts for plugins, complete by themselves."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core import phases
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.phases import Hook, ShownCall, ShownOutcome
from chordage.orchestrator.core.reasons import NATURAL_END
from support.builders import a_reply

EXTRA = {
    Hook.RUN_START: (phases.RunStart, {}),
    Hook.STEP_START: (phases.StepStart, {}),
    Hook.BEFORE_INFERENCE: (phases.BeforeInference, {"model": "m"}),
    Hook.AFTER_INFERENCE: (phases.AfterInference, {"reply": a_reply()}),
    Hook.STEP_END: (phases.StepEnd, {"reply": a_reply()}),
    Hook.BEFORE_TOOL_EXECUTE: (phases.BeforeToolExecute, {}),
    Hook.AFTER_TOOL_EXECUTE: (phases.AfterToolExecute, {"outcome": ShownOutcome(content="found", seconds=0.5)}),
    Hook.RUN_END: (phases.RunEnd, {"ending": NATURAL_END}),
}


@pytest.fixture
def moment():
    def build(hook, *, tool="search", arguments=None, resumed=None, **given):
        kind, extra = EXTRA[hook]
        call = ShownCall(id="c", ask_id="a", tool=tool, arguments=arguments or {}, resumed=resumed)
        about = {"call": call} if hook in {Hook.BEFORE_TOOL_EXECUTE, Hook.AFTER_TOOL_EXECUTE} else {}
        known = {"run_id": "r", "thread_id": "t", "agent": "ada", "group": Group.CHAT}
        return kind(**(known | extra | about | given))

    return build
