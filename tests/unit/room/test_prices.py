"""What models cost, as the files of a room say it."""

from __future__ import annotations

from datetime import date

import pytest

from chordage import RoomError
from chordage.orchestrator.core.prices import Price, exact

MODEL = 'model = "openai:m"\n'
BOTH = "input = 1, output = 2"


def fault(folder, text):
    folder.agent(MODEL + text)
    with pytest.raises(RoomError) as refusal:
        folder.open().get(None)
    return str(refusal.value)


def test_prices_of_all_files_are_the_rooms_and_the_oldest_comes_first(folder):
    folder.agent(f'{MODEL}[prices]\n"openai:m" = {{ input = 0.15, output = 0.6, cached = 0.075 }}\n')
    dated = f'[[prices."local:x"]]\nsince = 2026-06-01\n{BOTH.replace(", ", chr(10))}\n[[prices."local:x"]]\n'
    folder.agent(f"{MODEL}{dated}input = 3\noutput = 4\ncache_write = 5\n", "agents/other.toml")

    assert folder.open().prices() == {
        "openai:m": (Price(input=exact(0.15), output=exact(0.6), cached=exact(0.075)),),
        "local:x": (
            Price(input=exact(3), output=exact(4), cache_write=exact(5)),
            Price(input=exact(1), output=exact(2), since=date(2026, 6, 1)),
        ),
    }


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("input = 1", ":3: prices.openai:m.output: is missing; write `output = ...`"),
        ("input = -1, output = 1", ":3: prices.openai:m.input: must be dollars for a million tokens, 0 to 1000000"),
        ("input = 2e6, output = 1", "0 to 1000000"),
        ('input = "1", output = 1', "must be dollars for a million tokens"),
        ("input = true, output = 1", "must be dollars for a million tokens"),
        ("input = inf, output = 1", "must be dollars for a million tokens"),
        (f"{BOTH}, inputs = 1", "there is no such key; did you mean input?"),
        (f'{BOTH}, since = "2026-01-01"', "since: must be a day, like 2026-01-31 without quotes, or leave it out"),
        (f"{BOTH}, since = 2026-01-01T10:00:00Z", "must be a day"),
    ],
)
def test_a_wrong_price_has_its_line_and_its_remedy(folder, said, told):
    assert told in fault(folder, f'[prices]\n"openai:m" = {{ {said} }}\n')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[prices]\n"openai:m" = 3\n', "prices.openai:m: must be a table"),
        ('[prices]\n"openai:m" = []\n', "must be a table with input and output, or a list of such tables with since"),
        ('[prices]\n"openai:m" = [3]\n', "must be a table with input and output, or a list of such tables"),
        (f'[prices]\n"openai:m" = [{{ {BOTH} }}, {{ input = 1 }}]\n', "prices.openai:m.output: is missing"),
        (f"[prices]\nm = {{ {BOTH} }}\n", ":3: prices.m: a model is written provider:model"),
        (f'[prices]\n"a:m" = [{{ {BOTH} }}, {{ {BOTH} }}]\n', "there are two prices without since; keep one"),
        (
            f'[prices]\n"a:m" = [{{ {BOTH}, since = 2026-01-01 }}, {{ {BOTH}, since = 2026-01-01 }}]\n',
            "there are two prices since 2026-01-01; keep one",
        ),
        ("prices = 3\n", "prices: must be a table"),
    ],
)
def test_a_wrong_list_of_prices_is_refused(folder, text, told):
    assert told in fault(folder, text)


def test_a_model_has_one_price_in_the_whole_room(folder):
    folder.agent(f'{MODEL}[prices]\n"openai:m" = {{ {BOTH} }}\n')
    folder.agent(f'{MODEL}[prices]\n"openai:m" = {{ {BOTH} }}\n', "agents/same.toml")
    folder.agent(f'{MODEL}[prices]\n"openai:m" = {{ input = 9, output = 2 }}\n', "agents/unlike.toml")
    room = folder.open()

    assert [str(one) for one in room.faults] == [
        "agents/unlike.toml:3: prices.openai:m: is priced differently in agent.toml; keep one of the two"
    ]
    assert room.prices()["openai:m"][0].input == 1


def test_a_broken_file_keeps_the_prices_of_its_last_good_version(folder):
    folder.agent(f'{MODEL}[prices]\n"openai:m" = {{ {BOTH} }}\n')
    room = folder.open()
    folder.agent("model = 5\n")

    assert len(room.faults) == 1
    assert list(room.prices()) == ["openai:m"]


BUDGETS = ["[stops]\ncost_budget = 1\n", '[[plugins]]\nuse = "stops"\ncost_budget = 1\n']


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_cost_budget_needs_a_price_for_every_model_of_its_agent(folder, budget):
    fallback = f'fallbacks = ["openai:other"]\n{budget}'

    line = 2 + budget.count("\n")
    assert fault(folder, f'{fallback}[prices]\n"openai:m" = {{ {BOTH} }}\n') == (
        f"agent.toml:{line}: {'stops' if budget.startswith('[stops') else 'plugins'}.cost_budget: openai:other has no"
        " price; add [prices] to agent.toml, or price_per_million here"
    )


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_cost_budget_takes_the_prices_of_another_file_or_its_own(folder, budget):
    folder.agent(MODEL + budget, "agents/one.toml")
    folder.agent(f'{MODEL}[prices]\n"openai:m" = {{ {BOTH} }}\n')
    folder.agent(f'model = "x:y"\n{budget}price_per_million = {{ {BOTH} }}\n', "agents/two.toml")

    assert folder.open().faults == []
