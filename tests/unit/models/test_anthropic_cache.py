"""What of a request Anthropic shall keep for the next one."""

from __future__ import annotations

import json

import pytest

from chordage.orchestrator.core.model import AssistantSays, ToolAsk, ToolOffer, ToolSays, UserSays
from chordage.orchestrator.core.transcript import AWAITING, NOT_STARTED
from chordage.orchestrator.gateways.models.anthropic import AnthropicWire
from chordage.orchestrator.gateways.models.openai import OpenAIWire
from chordage.orchestrator.gateways.models.wire import Target
from support.fake_providers import a_prompt

TARGET = Target(provider="anthropic", model="claude")
OFFERS = (
    ToolOffer(name="add", description="Adds.", schema={"type": "object"}),
    ToolOffer(name="take", description="Takes.", schema={"type": "object"}),
)
MARK = {"type": "ephemeral"}


def body(*said, wire=None, **prompt):
    made = a_prompt(*said, **{"cache": True, "system": "Be kind.", "offers": OFFERS, **prompt})
    return (wire or AnthropicWire()).body(made, TARGET, stream=False)


def a_round(*results, ids=("a", "b")):
    asks = tuple(ToolAsk(id=one, name="add", arguments={}) for one in ids[: len(results)])
    answers = (ToolSays(ask_id=one, name="add", content=said) for one, said in zip(ids, results, strict=False))
    return AssistantSays(text="", asks=asks), *answers


def marks(request) -> list[str]:
    """Where they are, in the order of the request."""
    found = [f"tools.{place}" for place, tool in enumerate(request.get("tools", [])) if "cache_control" in tool]
    if isinstance(request.get("system"), list):
        found += [f"system.{place}" for place, one in enumerate(request["system"]) if "cache_control" in one]
    for number, message in enumerate(request["messages"]):
        found += [f"{number}.{place}" for place, one in enumerate(message["content"]) if "cache_control" in one]
    assert json.dumps(request).count('"cache_control"') == len(found) <= 4
    return found


def test_first_request_marks_tools_system_and_the_messages():
    request = body("hi")
    assert marks(request) == ["tools.1", "system.0", "0.0"]
    assert request["system"] == [{"type": "text", "text": "Be kind.", "cache_control": MARK}]
    assert request["tools"][1]["cache_control"] == MARK


def test_the_end_of_the_request_before_is_marked_too_however_long_the_round_was():
    request = body("hi", *a_round("1", "2"), *a_round("3", "4", ids=("c", "d")))
    assert marks(request) == ["tools.1", "system.0", "2.1", "4.1"]


def test_marked_part_of_a_request_is_the_beginning_of_the_next():
    first = body("hi", *a_round("1", "2"))
    second = body("hi", *a_round("1", "2"), *a_round("3", ids=("c",)))

    def plain(request):
        return json.loads(json.dumps(request).replace(', "cache_control": {"type": "ephemeral"}', ""))

    assert plain(second)["messages"][: len(first["messages"])] == plain(first)["messages"]
    assert (plain(second)["system"], plain(second)["tools"]) == (plain(first)["system"], plain(first)["tools"])
    assert marks(first)[-1] == marks(second)[-2]


@pytest.mark.parametrize("placeholder", [AWAITING, NOT_STARTED])
def test_nothing_is_marked_from_a_result_on_that_is_still_to_come(placeholder):
    request = body("hi", *a_round("1"), *a_round(placeholder, "2", ids=("c", "d")), UserSays(text="and now?"))
    assert marks(request) == ["tools.1", "system.0", "0.0", "2.0"]


def test_of_the_system_text_only_the_part_that_stays_is_marked():
    system = "Be kind.\n\nIt is noon."
    request = body("hi", system=system, stable=len("Be kind."))
    assert request["system"] == [
        {"type": "text", "text": "Be kind.", "cache_control": MARK}, {"type": "text", "text": "It is noon."},
    ]  # fmt: skip


def test_without_system_and_tools_there_are_fewer_marks():
    assert marks(body("hi", system="", offers=())) == ["0.0"]


def test_without_the_switch_the_request_is_as_it_was():
    request = body("hi", cache=False)
    assert marks(request) == []
    assert request["system"] == "Be kind."


@pytest.mark.parametrize(
    "params",
    [
        {"cache_control": MARK},
        {"system": [{"type": "text", "text": "x", "cache_control": MARK}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "cache_control": MARK}]},
    ],
    ids=["whole", "system", "tools"],
)
def test_marks_of_the_room_are_the_only_ones(params):
    request = body("hi", params={"anthropic": params})
    assert json.dumps(request).count('"cache_control"') == 1


def test_the_other_format_caches_by_itself_and_gets_no_marks():
    assert "cache_control" not in json.dumps(body("hi", wire=OpenAIWire()))
