"""Table 3.3 with our defaults: what a consumer does while it holds a reply, and the request that follows.

The ids name the row of the table and the behaviour. Where we decide otherwise than the SDKs, ADR 0021 says so.
"""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.stepping import Standing
from support.driving import USER, Consumer, asks, consume, history_of, in_short, text
from support.invariants import check_all


def nothing(_: Consumer) -> None:
    pass


def generate(it: Consumer) -> None:
    it.do("tool_response")


def generate_push_both(it: Consumer) -> None:
    it.push(it.link, *(it.do("tool_response").tool_response or []))


def push_reply(it: Consumer) -> None:
    it.push(it.link)


def generate_push_reply(it: Consumer) -> None:
    it.do("tool_response")
    it.push(it.link)


def push_user(it: Consumer) -> None:
    it.push(USER)


def push_user_generate(it: Consumer) -> None:
    it.push(USER)
    it.do("tool_response")


def params(it: Consumer) -> None:
    it.do("params", params={"max_tokens": 9})


def push_reply_and_user(it: Consumer) -> None:
    it.push(it.link, USER)


def edit_the_history_shown(it: Consumer) -> None:
    shown = list(history_of(it.world, it.turn))
    shown.clear()
    it.look().pending.__add__((USER,))


def own_the_history(it: Consumer) -> None:
    it.do("params", params={}, messages=[{"role": "user", "text": "hi"}, USER])


def steer(it: Consumer) -> None:
    it.do("steer", text="S")


def steer_and_push_both(it: Consumer) -> None:
    it.do("steer", text="S")
    push_reply(it)


R, T = ["R(a b)"], ["a=pure0", "b=pure1"]
ROWS = [
    pytest.param(nothing, ["hi", *R, *T], 2, id="B8-row1-nothing"),
    pytest.param(generate, ["hi", *R, *T], 2, id="B25-generate-alone-changes-no-history"),
    pytest.param(generate_push_both, ["hi", *R, *T], 2, id="B9-row2-generate-push-reply-and-results"),
    pytest.param(push_reply, ["hi", *R, *T], 2, id="B10-row3-push-reply"),
    pytest.param(generate_push_reply, ["hi", *R, *T], 2, id="B11-B28-B31-row4-generate-push-reply"),
    pytest.param(push_user, ["hi", "U"], 0, id="B12-row5-push-user"),
    pytest.param(push_user_generate, ["hi", "U"], 2, id="B13-row6-push-user-generate"),
    pytest.param(params, ["hi", *R, *T], 2, id="B14-row7-params-alone-are-neutral"),
    pytest.param(edit_the_history_shown, ["hi", *R, *T], 2, id="B18-row11-editing-what-is-shown"),
    pytest.param(own_the_history, ["hi", "U"], 0, id="B19-row12-messages-through-the-params"),
    pytest.param(steer, ["hi", *R, *T, "S"], 2, id="B23-steer-lands-behind-the-results"),
    pytest.param(steer_and_push_both, ["hi", *R, *T, "S"], 2, id="B24-both-channels"),
]


@pytest.mark.parametrize(("does", "request_", "executions"), ROWS)
def test_reply_with_tool_calls_is_held(world, does, request_, executions):
    it = consume(world, asks("a", "b"), text("done"))
    it.next()

    does(it)
    it.next()

    assert it.asked == [["hi"], request_]
    assert it.runs == executions
    it.next()
    assert it.look().standing is Standing.DONE
    check_all(world.store)


TEXT_ROWS = [
    pytest.param(params, None, id="B15-row8-params-on-text-end-it"),
    pytest.param(push_user, ["hi", "U"], id="B16-row9-push-user-on-text"),
    pytest.param(push_reply_and_user, ["hi", "R", "U"], id="B17-row10-push-reply-and-user-on-text"),
    pytest.param(steer, ["hi", "R", "S"], id="B23-steer-on-text-asks-once-more"),
    pytest.param(nothing, None, id="B6-text-ends"),
]


@pytest.mark.parametrize(("does", "request_"), TEXT_ROWS)
def test_reply_of_text_is_held(world, does, request_):
    it = consume(world, text("R"), text("done"))
    it.next()

    does(it)
    it.next()

    assert it.asked == [["hi"], *([request_] if request_ else [])]
    assert it.look().standing is (Standing.HELD if request_ else Standing.DONE)
    if request_:
        it.next()
    check_all(world.store)


PRE_START = [
    pytest.param(push_user, ["hi", "U"], id="B20-B5-row13-push-before-the-first-request"),
    pytest.param(own_the_history, ["hi", "U"], id="B20-B5-row13-own-before-the-first-request"),
    pytest.param(params, ["hi"], id="B20-B5-row13-params-before-the-first-request"),
    pytest.param(steer, ["hi", "S"], id="B20-steer-before-the-first-request"),
]


@pytest.mark.parametrize(("does", "request_"), PRE_START)
def test_an_edit_before_the_first_request_is_applied_and_the_run_is_normal(world, does, request_):
    it = consume(world, asks("a", "b"), text("done"))

    does(it)
    it.next()
    assert it.look().mutated is False
    it.next()
    it.next()

    assert it.asked == [request_, [*request_, *R, *T]]
    assert it.look().standing is Standing.DONE
    check_all(world.store)


def test_B14_changed_params_are_used_by_the_next_request(world):
    it = consume(world, asks("a"), text())
    it.next()
    params(it)
    it.next()

    assert [prompt.params for prompt in world.models.prompts] == [{}, {"max_tokens": 9}]


def test_B21_request_options_are_neutral_in_any_state(world):
    it = consume(world, asks("a"), text())
    agents = []
    complete = world.models.complete
    world.models.complete = lambda agent, prompt, **more: agents.append(agent) or complete(agent, prompt, **more)
    it.next()
    it.do("options", options={"model_timeout": 7})
    it.next()

    assert [agent.model_timeout for agent in agents] == [120.0, 7]
    assert it.asked[1] == ["hi", "R(a)", "a=pure0"]


def test_keys_left_out_are_kept_and_null_removes(world):
    it = consume(world, text(), params={"temperature": 1})
    it.do("params", params={"max_tokens": 9})
    it.do("params", params={"temperature": None})

    assert it.look().params == {"max_tokens": 9}


def test_B22_a_mutation_each_pass_runs_to_the_cap(world):
    it = consume(world, asks("a"), max_iterations=4)
    it.next()
    for number in range(4):
        it.push({"role": "user", "text": f"U{number}"})
        it.next()

    assert len(it.asked) == 4
    assert (it.look().standing, it.look().code, it.runs) == (Standing.DONE, "max_iterations", 0)
    check_all(world.store)


def test_an_unchanged_request_is_never_sent_again(world):
    it = consume(world, asks("a"), text())
    it.next()
    it.do("params", params={}, messages=[{"role": "user", "text": "hi"}])

    with pytest.raises(StepRefused) as refused:
        it.next()

    assert (refused.value.code, len(it.asked)) == ("noop_mutation", 1)
    it.do("params", params={"temperature": 0})
    it.next()
    assert it.asked == [["hi"], ["hi"]], "with other parameters it is another request"


def test_no_request_leaves_with_an_open_call(world):
    it = consume(world, asks("a", "b"), text())
    it.next()
    it.push(it.link, {"role": "tool", "ask_id": "a", "content": "A"}, USER)

    with pytest.raises(StepRefused, match="no result for the asks b") as refused:
        it.next()

    assert (refused.value.code, it.look().standing, len(it.asked)) == ("open_calls", Standing.HELD, 1)
    it.do("params", params={}, messages=[{"role": "user", "text": "hi"}, it.link])
    assert in_short(history_of(world, it.turn))[:2] == ["hi", "R(a b)"]
    it.next()
    assert it.asked[1] == ["hi", "R(a b)", "a=pure0", "b=pure1"]
    it.next()
    check_all(world.store)


def test_calls_in_the_consumers_own_message_are_carried_out(world):
    own = {"role": "assistant", "text": "", "asks": [{"id": "x", "name": "pure", "arguments": {"n": 5}}]}
    it = consume(world, asks("a"), text())
    it.next()
    it.do("tool_response")  # the reply has calls of its own already
    it.push(USER, own)
    it.next()

    assert it.asked[1] == ["hi", "U", "R(x)", "x=pure5"]
    it.next()
    check_all(world.store)


def test_an_id_that_a_dropped_reply_used_can_come_again(world):
    it = consume(world, asks("a"), asks("a"), text())
    it.next()
    it.do("tool_response")
    it.push(USER)
    it.next()
    it.next()

    assert it.asked[2] == ["hi", "U", "R(a)", "a=pure0"]
    assert it.runs == 2
    it.next()
    check_all(world.store)


def test_a_consumer_that_pushes_on_every_iteration_repeats_no_call_and_no_request(world):
    it = consume(world, *(asks(f"a{n}", tool="unsafe") for n in range(6)), text("end"))
    it.next()
    for number in range(6):
        results = it.do("tool_response").tool_response
        match number % 3:
            case 0:
                it.push(it.link, *results)
            case 1:
                it.push(it.link)
            case 2:
                it.push({"role": "user", "text": f"U{number}"})
        it.next()
    it.next()

    assert max(world.tools.ran.values()) == 1
    assert it.runs == 6
    assert len({tuple(request) for request in it.asked}) == len(it.asked) == 7
    check_all(world.store)


def test_B4_B5_what_is_laid_down_for_the_turn_is_not_sent_and_edits_before_the_start_are(world):
    it = consume(world, text("done"), max_iterations=3, hold_seconds=60, params={"instructions": "be brief"})
    it.do("params", params={"temperature": 0, "tools": ["pure"]})
    it.push(USER)
    it.next()

    (prompt,) = world.models.prompts
    assert (prompt.params, prompt.system, [one.name for one in prompt.offers]) == (
        {"temperature": 0},
        "be brief",
        ["pure"],
    )
    assert it.asked == [["hi", "U"]]
