"""Exactly one model call, no tools offered."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.model import StopReason
from chordage.orchestrator.core.moves import Finish, Infer, View
from chordage.orchestrator.core.reasons import NATURAL_END
from chordage.orchestrator.strategies.shipped import direct
from support.builders import a_reply, an_ask


def test_the_model_is_asked_once_and_is_offered_nothing():
    assert direct(View(rounds=0, reply=None, max_rounds=25)) == Infer(offer_tools=False)


@pytest.mark.parametrize("stop", list(StopReason))
def test_whatever_it_says_is_the_answer(stop):
    view = View(rounds=0, reply=a_reply(stop, an_ask()), max_rounds=25)

    assert direct(view) == Finish(ending=NATURAL_END)
