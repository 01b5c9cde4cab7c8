"""Each condition at its boundary, off when it is not given, and the first that holds."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.model import AssistantSays, Fault, StopReason, ToolSays, Usage, UserSays
from chordage.orchestrator.core.phases import Hook, ModelError
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.transcript import AWAITING, NOT_STARTED
from chordage.orchestrator.plugins.base import OptionRefused
from chordage.orchestrator.plugins.stops import Stops
from support.builders import a_reply, an_ask

TOOLS = a_reply(StopReason.TOOL_USE, an_ask())
TEXT = a_reply()
PAUSE = a_reply(StopReason.PAUSE_TURN)


@pytest.fixture
def stop(moment):
    """The code and the detail of the end that follows, or None."""

    def ask(options, reply=TEXT, **seen):
        verdicts = list(Stops(**options).after_inference(moment(Hook.AFTER_INFERENCE, reply=reply, **seen)))
        if not verdicts:
            return None
        (verdict,) = verdicts
        assert verdict.ending.reason is Reason.STOPPED
        return verdict.ending.code, verdict.ending.detail

    return ask


def a_round(*contents, name="search", **ask):
    """One exchange: contents that begin with ! are errors."""
    asks = tuple(an_ask(str(place), name, **ask) for place in range(len(contents)))
    answers = [
        ToolSays(ask_id=one.id, name=name, content=said.lstrip("!"), is_error=said.startswith("!"))
        for one, said in zip(asks, contents, strict=True)
    ]
    return (AssistantSays(text="", asks=asks), *answers)


FAILED = a_round("!no", "!no")
WELL = a_round("!no", "yes")


def test_without_options_nothing_stops(stop):
    said = (UserSays(text="hi"), *FAILED * 50)
    usage = Usage(input_tokens=10**9, output_tokens=10**9)

    assert stop({}, TOOLS, rounds=1000, elapsed=1e9, usage=usage, said=said) is None


ALL_NONE = dict.fromkeys(
    ["max_rounds", "timeout", "max_tool_calls", "token_budget", "cost_budget", "price_per_million",
     "consecutive_errors", "stop_on_tool", "content_match", "loop_detection"]
)  # fmt: skip


def test_none_is_none(stop):
    assert stop(ALL_NONE, TOOLS, rounds=1000, elapsed=1e9) is None


@pytest.mark.parametrize(
    ("reply", "rounds", "stops"),
    [(TOOLS, 1, False), (TOOLS, 2, True), (TOOLS, 3, True), (PAUSE, 2, True), (TEXT, 2, False), (TEXT, 9, False)],
)
def test_max_rounds_counts_the_round_that_the_reply_opens(reply, rounds, stops, stop):
    found = stop({"max_rounds": 3}, reply, rounds=rounds)

    assert found == (("max_rounds", "the limit of 3 rounds was reached") if stops else None)


def test_the_limits_of_time_and_calls_are_left_to_the_engine(stop):
    assert stop({"timeout": 2.5, "max_tool_calls": 1}, elapsed=9) is None


def test_token_budget_is_for_what_goes_in_and_out(stop):
    assert stop({"token_budget": 100}, usage=Usage(input_tokens=60, output_tokens=39)) is None
    used = Usage(input_tokens=60, output_tokens=40, cached_tokens=50)
    assert stop({"token_budget": 100}, usage=used) == ("token_budget", "100 tokens were used; the budget is 100")


def test_cost_budget_knows_the_price_of_each_kind(stop):
    options = {"cost_budget": 1.0, "price_per_million": {"input": 2, "output": 10, "cached": 1}}
    used = Usage(input_tokens=100_000, cached_tokens=80_000, output_tokens=87_999)

    assert stop(options, usage=used) is None
    assert stop(options, usage=used + Usage(output_tokens=1)) == ("cost_budget", "1 was spent; the budget is 1")


def test_what_is_written_to_a_cache_has_a_price_of_its_own(stop):
    used = Usage(input_tokens=1_000_000, cached_tokens=200_000, cache_write_tokens=300_000)  # 500_000 are fresh
    prices = {"input": 4, "output": 0, "cached": 0.5, "cache_write": 5}

    def is_spent(budget: float) -> bool:
        return stop({"cost_budget": budget, "price_per_million": prices}, usage=used) is not None

    assert (is_spent(3.59), is_spent(3.61)) == (True, False)  # 2 fresh, 0.1 read, 1.5 written
    del prices["cache_write"]  # then it costs as other input
    assert (is_spent(3.29), is_spent(3.31)) == (True, False)


def test_cost_budget_without_prices_of_its_own_counts_what_the_replies_cost(stop):
    options = {"cost_budget": 0.5}

    assert stop(options, usage=Usage(input_tokens=10**9, cost_nanos=499_999_999)) is None
    assert stop(options, usage=Usage(cost_nanos=500_000_000, unpriced=1))[1] == "0.5 was spent; the budget is 0.5"
    assert stop(options, usage=Usage(input_tokens=10**9, cost_nanos=None, unpriced=3)) is None


def test_cached_input_costs_as_much_as_other_input_by_default(stop):
    options = {"cost_budget": 2, "price_per_million": {"input": 2, "output": 0}}

    assert stop(options, usage=Usage(input_tokens=999_999, cached_tokens=999_999)) is None
    assert stop(options, usage=Usage(input_tokens=1_000_000, cached_tokens=1_000_000))[0] == "cost_budget"


@pytest.mark.parametrize(
    ("said", "reply", "stops"),
    [
        (FAILED * 2, TOOLS, True),
        (WELL + FAILED * 2, TOOLS, True),
        (FAILED, TOOLS, False),
        (FAILED + WELL, TOOLS, False),
        (FAILED + WELL + FAILED, TOOLS, False),
        (FAILED + (AssistantSays(text="hm"),) + FAILED, TOOLS, False),
        (FAILED + (UserSays(text="go on"),) + FAILED, TOOLS, True),
        (FAILED + a_round(f"!{AWAITING}"), TOOLS, False),
        (FAILED + a_round("!no", f"!{NOT_STARTED}"), TOOLS, False),
        (FAILED * 2, TEXT, False),
    ],
)
def test_consecutive_errors_are_rounds_in_which_every_tool_failed(said, reply, stops, stop):
    found = stop({"consecutive_errors": 2}, reply, said=said)

    assert found == (("consecutive_errors", "every tool failed in 2 rounds one after the other") if stops else None)


def test_rounds_of_an_earlier_run_do_not_count(stop):
    said = FAILED * 2

    assert stop({"consecutive_errors": 2}, TOOLS, said=said, said_before=3) is None
    assert stop({"loop_detection": 2}, a_reply(StopReason.TOOL_USE, *said[0].asks), said=said, said_before=6) is None


def test_stop_on_tool(stop):
    both = a_reply(StopReason.TOOL_USE, an_ask("1", "search"), an_ask("2", "finish"))

    assert stop({"stop_on_tool": "finish"}, both) == ("stop_on_tool", "the tool finish was asked for")
    assert stop({"stop_on_tool": ["x", "search"]}, both) == ("stop_on_tool", "the tool search was asked for")
    assert stop({"stop_on_tool": "fin"}, both) is None


def test_content_match_compares_the_exact_text(stop):
    reply = a_reply(text="All done. [DONE]")

    assert stop({"content_match": "[DONE]"}, reply) == ("content_match", "the reply contains '[DONE]'")
    assert stop({"content_match": ["no", "All"]}, reply)[0] == "content_match"
    assert stop({"content_match": "[done]"}, reply) is None


def asking(*asks):
    return AssistantSays(text="", asks=asks), a_reply(StopReason.TOOL_USE, *asks)


SAME, SAME_REPLY = asking(an_ask("1", arguments={"q": "x", "n": 1}), an_ask("2", "count"))
TURNED, TURNED_REPLY = asking(an_ask("3", "count"), an_ask("4", arguments={"n": 1, "q": "x"}))
OTHER, OTHER_REPLY = asking(an_ask("1", arguments={"q": "y"}), an_ask("2", "count"))


@pytest.mark.parametrize(
    ("said", "reply", "stops"),
    [
        ((SAME, SAME), SAME_REPLY, True),
        ((OTHER, SAME, TURNED), SAME_REPLY, True),
        ((SAME, SAME), TURNED_REPLY, True),
        ((SAME,), SAME_REPLY, False),
        ((SAME, OTHER), SAME_REPLY, False),
        ((SAME, SAME), OTHER_REPLY, False),
        ((SAME, AssistantSays(text="hm"), SAME), SAME_REPLY, False),
        ((AssistantSays(text="hm"), AssistantSays(text="hm")), TEXT, False),
    ],
)
def test_repeated_equal_calls_are_a_loop(said, reply, stops, stop):
    found = stop({"loop_detection": 3}, reply, said=said)

    detail = "count, search: asked for the same in 3 rounds one after the other"
    assert found == (("loop_detection", detail) if stops else None)


def test_arguments_that_could_not_be_read_are_compared_as_they_came(stop):
    one, reply = asking(an_ask(arguments=None, raw="{oops"))
    other, _ = asking(an_ask(arguments=None, raw="{oh"))

    assert stop({"loop_detection": 2}, reply, said=(one,))[0] == "loop_detection"
    assert stop({"loop_detection": 2}, reply, said=(other,)) is None


def test_the_first_condition_that_holds_is_the_reason(stop):
    usage = Usage(input_tokens=9)
    assert stop({"content_match": "so", "token_budget": 1}, usage=usage)[0] == "token_budget"


def test_a_reply_that_failed_ends_without_us(stop):
    error = ModelError(fault=Fault.SERVER, message="oh")

    assert stop({"max_rounds": 1}, None, error=error, rounds=9) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *[({name: 0}, f"{name}: must be a whole number, 1 or more; for no limit leave it out; got 0")
          for name in ("max_rounds", "token_budget", "consecutive_errors")],
        ({"timeout": 0}, "timeout: must be a number of more than 0; for no limit leave it out; got 0"),
        ({"timeout": -1}, "timeout: must be a number"),
        ({"timeout": float("nan")}, "timeout: must be a number"),
        ({"max_tool_calls": 0}, "max_tool_calls: must be a whole number, 1 or more; for no limit leave it out; got 0"),
        ({"max_tool_calls": 2.5}, "max_tool_calls: must be a whole number"),
        ({"cost_budget": 0, "price_per_million": {"input": 1, "output": 1}}, "cost_budget: must be a number of more"),
        ({"max_rounds": True}, "max_rounds: must be a whole number"),
        ({"max_rounds": 2.5}, "max_rounds: must be a whole number"),
        ({"loop_detection": 0}, "loop_detection: must be a whole number, 2 or more"),
        ({"loop_detection": 1}, "loop_detection: must be a whole number, 2 or more"),
        ({"stop_on_tool": ""}, "stop_on_tool: must be a text or a list of texts, none of them blank; got ''"),
        ({"stop_on_tool": []}, "stop_on_tool: must be a text"),
        ({"content_match": [1]}, "content_match: must be a text"),
        ({"content_match": 0}, "content_match: must be a text"),
        ({"price_per_million": {"input": 1}}, "price_per_million: must be a table with input and output"),
        ({"price_per_million": 3}, "price_per_million: must be a table"),
        ({"price_per_million": {"input": 1, "output": -1}}, "price_per_million: output must be a price, 0 or more"),
        ({"price_per_million": {"input": 1, "output": 1, "x": 1}}, "price_per_million: must be a table"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_by_name(options, said):
    with pytest.raises(OptionRefused) as refusal:
        Stops(**options)
    assert str(refusal.value).startswith(said)
