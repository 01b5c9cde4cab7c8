"""`groups`: what people and programs see of budgets, and how one is laid down."""

from __future__ import annotations

import json

import pytest

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch
from chordage.tasks.courier import Courier
from chordage.workers.cli.groups import COLUMNS


def test_groups_are_listed_with_their_budgets(chordage):
    chordage("migrate")

    lines = [line.split("\t") for line in chordage("groups", bounds__task__max_queued="7").stdout.splitlines()]

    assert [len(line) for line in lines] == [len(COLUMNS)] * 4
    assert [line[:3] for line in lines] == [
        ["chat", "64", "settings"], ["task", "8", "settings"], ["chore", "2", "settings"], ["will", "1", "settings"],
    ]  # fmt: skip
    assert [line[6] for line in lines] == ["-", "7", "-", "-"]


def test_a_budget_is_laid_down_and_left_to_the_setting_again(chordage):
    chordage("migrate")

    told = chordage("groups", "set", "chat", "32").stdout
    (laid_down, *_) = json.loads(chordage("groups", "--json").stdout)
    back = chordage("groups", "set", "chat", "--unset", budgets__chat="5").stdout

    assert told == "chat: budget 32 (from database), 0 running, 0 queued\n"
    assert (laid_down["budget"], laid_down["budget_from"]) == (32, "database")
    assert back == "chat: budget 5 (from settings), 0 running, 0 queued\n"


@pytest.mark.parametrize("options", [("32",), ("--unset",)])
def test_setting_a_budget_dispatches_the_turns_that_wait_for_it(chordage, monkeypatch, options):
    chordage("migrate")
    sent = []
    monkeypatch.setattr(Courier, "send", lambda _courier, intents: sent.extend(intents))

    done = chordage("groups", "set", "chat", *options, redis_url="redis://127.0.0.1:1/0")

    assert done.exit_code == 0, done.stderr
    assert sent == [Dispatch(group=Group.CHAT)]


def test_neither_a_number_nor_unset_is_a_wrong_use(chordage):
    chordage("migrate")

    for options in ((), ("3", "--unset"), ("-1",)):
        assert chordage("groups", "set", "chat", *options).exit_code == 2


def test_closed_group_refuses_a_message_and_names_the_setting_that_closes_it(chordage):
    done = chordage("invoke", "hi", bounds__chat__max_queued="0")

    assert done.exit_code == 1
    assert "group chat takes no messages" in done.stderr
    assert "CHORDAGE_BOUNDS__CHAT__MAX_QUEUED" in done.stderr
    assert json.loads(chordage("turns", "--json").stdout) == []
