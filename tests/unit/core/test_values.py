"""What runs, calls, tools and replies know of themselves."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.agent import Effect, Limits, ToolSpec
from chordage.orchestrator.core.model import Fault, Usage
from chordage.orchestrator.core.records import Phase
from support.builders import a_call, a_run


@pytest.mark.parametrize(
    ("phase", "in_flight", "expected"),
    [
        (Phase.INFERENCE, 0, 4),
        (Phase.TOOL_ROUND, 0, 5),
        (Phase.TOOL_ROUND, 1, None),
        (Phase.TOOL_ROUND, 7, None),
    ],
)
def test_model_may_be_called_at_an_open_inference_or_after_a_settled_round(phase, in_flight, expected):
    assert a_run(step=4, phase=phase, in_flight=in_flight).next_inference == expected


def test_a_new_epoch_is_another_owner_of_the_thread_and_of_the_work():
    before, after = a_run(id="r", epoch=1), a_run(id="r", epoch=2)

    assert (before.owner, after.owner) == ("r:1", "r:2")
    assert before.work_key(3) == "r:1:3"
    assert before.work_key(3) != after.work_key(3) != after.work_key(4)


def test_the_idempotency_key_is_stable_per_run_call_and_generation():
    key = a_call(run_id="r", ask_id="a", generation=1).idempotency_key

    assert a_call(run_id="r", ask_id="a", generation=1, id="other", resends=3, worker="w").idempotency_key == key
    changed = [{"run_id": "s"}, {"ask_id": "b"}, {"generation": 2}]
    assert len({key, *(a_call(**{"run_id": "r", "ask_id": "a", **one}).idempotency_key for one in changed)}) == 4


def test_only_effects_that_cannot_be_repeated_start_on_record():
    assert {effect.value for effect in Effect if effect.starts_on_record} == {"reconcilable", "unsafe"}


def test_a_tool_that_declares_nothing_is_unsafe():
    assert ToolSpec(name="t", description="", schema={}).effect is Effect.UNSAFE


def test_agent_has_a_limit_of_rounds_by_default():
    assert Limits().max_rounds == 25
    assert Limits(max_rounds=None).max_rounds is None


def test_what_may_pass_is_tried_again_and_what_will_not_is_not():
    for_good = {fault.value for fault in Fault if not fault.retryable}

    assert for_good == {"quota", "auth", "context", "rejected"}


def test_usage_adds_up_field_by_field():
    one = Usage(input_tokens=1, output_tokens=20, cached_tokens=300, cache_write_tokens=7)
    other = Usage(input_tokens=4, output_tokens=50, cached_tokens=600, cache_write_tokens=8)

    assert one + other == Usage(input_tokens=5, output_tokens=70, cached_tokens=900, cache_write_tokens=15)
    assert one + Usage() == one
