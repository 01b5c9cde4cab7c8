"""pytest examples/testing/test_refunds.py finds the fault in refunds.py, and prints the steps that lead to it."""

from __future__ import annotations

import pytest
from refunds import Payments, refund

from chordage.testing import ScriptedModel, World


class Bank:
    """In the place of the payment provider. `world.effect` says that money moves; with a key, once for each key."""

    def __init__(self, world: World) -> None:
        self.world = world

    def pay(self, order: int, cents: int, *, key: str | None = None) -> None:
        self.world.effect("paid", key=key, order=order, cents=cents)


@pytest.mark.chordage_explore
def test_refund_is_paid_once(chordage_world: World) -> None:
    world = chordage_world
    Payments.provider = Bank(world)
    ask = {"tool_calls": [{"name": "refund", "arguments": {"order": 17, "cents": 4200}}]}
    world.agent("cashier", model=ScriptedModel([ask, "Done. {results}"]), tools=[refund])

    turn = world.submit("Please refund order 17.")
    world.run()

    world.assert_answered(turn, "Refunded 42.00")
    assert [effect.name for effect in world.effects] == ["paid"]
