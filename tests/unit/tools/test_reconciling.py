"""What the reconcile hook is asked, and what its answer means."""

from __future__ import annotations

import pytest

from chordage import Context, RoomError, tool
from chordage.orchestrator.gateways.tools.toolbox import ToolBox

BOUGHT = {"key-1": {"order": 17}}


def find_order(item: str, ctx: Context) -> dict | None:
    if item == "bomb":
        raise ConnectionError("the shop does not answer")
    return BOUGHT.get(ctx.idempotency_key) if item == "book" else None


@tool(effect="reconcilable", reconcile=find_order)
def buy(item: str, count: int = 1) -> dict:
    raise AssertionError


@tool
def careless(item: str) -> str:
    return item


def reconcile(bench, function, **arguments):
    return bench.box(function).reconcile(None, bench.order(function, **arguments))


def test_what_the_hook_found_is_the_result(bench):
    outcome = reconcile(bench, buy, item="book", count=2)
    assert outcome.ok
    assert outcome.content == '{"order":17}'


def test_none_means_that_it_did_not_happen(bench):
    assert reconcile(bench, buy, item="pen") is None


def test_a_hook_may_be_async(bench):
    async def find(item: str) -> str:
        return f"{item} is there"

    @tool(effect="reconcilable", reconcile=find)
    def order(item: str) -> str:
        return item

    assert reconcile(bench, order, item="book").content == "book is there"


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        (buy, {"item": "bomb"}, "its reconcile hook failed: ToolError: ConnectionError: the shop does not answer"),
        (buy, {"item": 5, "wrong": 1}, "its arguments do not fit"),
        (careless, {"item": "x"}, "has no reconcile hook any more"),
    ],
)
def test_outcome_is_unknown_where_it_cannot_be_determined(bench, function, arguments, why):
    outcome = reconcile(bench, function, **arguments)
    assert outcome.code == "outcome_unknown"
    assert outcome.content.startswith(f"ToolError: it is not known what became of this call of {function.__name__}: ")
    assert why in outcome.content


def test_a_tool_that_cannot_be_loaded_here_is_an_outcome_too(bench):
    def broken(agent):
        raise RoomError("agent.toml:3: tools: gone")

    box = ToolBox(broken)
    ran = box.run(None, bench.order(buy), abort=bench.calm, on_progress=print)
    assert ran.code == "unknown_tool"
    assert ran.content == "ToolError: buy cannot be loaded on this worker: agent.toml:3: tools: gone"
    assert box.reconcile(None, bench.order(buy)).code == "outcome_unknown"
    with pytest.raises(RoomError):
        box.invalid(None, "buy", {})
