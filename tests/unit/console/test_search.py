"""The language of the search box."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chordage.orchestrator.console.search import read_search
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.views import TurnFilter, TurnState
from support.builders import NOON


def wanted(text):
    search = read_search(text, NOON)
    assert search.faults == (), search.faults
    return search.wanted


def test_terms_are_conditions_that_all_hold():
    text = 'status:waiting,failed agent:clerk tool:refund text:"order 17" group:chat tokens:>1k age:<1d tenant:"a b"'

    assert wanted(text) == TurnFilter(
        states=frozenset({TurnState.WAITING, TurnState.FAILED}), agent="clerk", tool="refund", text="order 17",
        group=Group.CHAT, more_tokens=1000, since=NOON - timedelta(days=1), tenant="a b",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("term", "condition"),
    [("cost:>0.10", {"dearer_than": 100_000_000}), ("cost:<$2", {"cheaper_than": 2_000_000_000})],
)
def test_cost_is_in_dollars(term, condition):
    assert wanted(term) == TurnFilter(**condition)


def test_words_without_a_name_are_searched_for_in_messages():
    assert wanted('late "red parcel"').text == "late red parcel"


def test_open_means_all_that_is_not_done():
    assert wanted("status:open").is_open


@pytest.mark.parametrize("word", ["01a1f679", "01a1", "01a1f679-90f1-7b79-be16-a84037252e34", "01A1F679-90"])
def test_what_looks_like_an_id_is_one(word):
    assert read_search(word, NOON).ids == (word,)


@pytest.mark.parametrize("word", ["order", "17", "facade", "'01a1'"])
def test_other_words_are_not(word):
    assert read_search(word, NOON).ids in {(), ("facade",)}


@pytest.mark.parametrize(
    ("text", "fault"),
    [("status:wating", "did you mean waiting?"), ("agnet:x", "did you mean agent?"), ("age:1d", "age:<1d"),
     ("tokens:many", "tokens:>1000"), ("cost:cheap", "cost:>0.10"), ("cost:>1e3", "cost:>0.10"),
     ("group:chap", "did you mean chat?"), ("age:<999999999999999d", "before all time")],
)  # fmt: skip
def test_what_cannot_be_understood_says_what_to_write(text, fault):
    (told,) = read_search(text, NOON).faults

    assert fault in told


def test_nothing_is_everything():
    assert wanted("  ") == TurnFilter()
