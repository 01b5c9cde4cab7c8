"""A reply judged as output: it fits, it does not, or the form itself is broken."""

from __future__ import annotations

import threading

import pytest

from chordage.orchestrator.core.output import Accepted, Ended, Refused
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.run import output
from support.outputs import Saying


def test_a_value_without_problems_is_accepted():
    assert output.check(Saying(lambda value: []), "```json\n[1]\n```") == Accepted(value=[1])


def test_problems_and_text_that_is_no_json_refuse_it():
    assert output.check(Saying(lambda value: ["$: no", "$.a: no"]), "{}") == Refused(why="- $: no\n- $.a: no")
    refused = output.check(Saying(lambda value: []), "no")
    assert isinstance(refused, Refused)
    assert refused.why.startswith("it is not one JSON value: Expecting value at line 1")


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError("deep"), SystemExit(3), MemoryError()])
def test_what_a_form_raises_ends_the_run(error):
    def broken(value):
        raise error

    found = output.check(Saying(broken), "{}")

    assert isinstance(found, Ended)
    assert (found.ending.reason, found.ending.code) == (Reason.ERROR, "output_check")
    assert found.ending.detail.startswith(f"the form raised {type(error).__name__}: ")


def test_a_form_that_hangs_ends_the_run():
    gate = threading.Event()
    found = output.check(Saying(lambda value: [str(gate.wait(30))]), "{}", seconds=0.02)
    gate.set()

    assert isinstance(found, Ended)
    assert found.ending.code == "output_check"
    assert found.ending.detail.startswith("the form took longer than 0.02 s when the answer was checked")
