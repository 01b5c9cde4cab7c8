"""Sub-agents in real processes: a tree that waits for a person while all dies, and a hundred children at once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from support.invariants import check_all
from support.rig import Plan, Rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

LINE = ("lead", "editor", "scout", "asks")


def a_line_of_agents(rig: Rig) -> None:
    """Each asks the next; the last has a tool that asks a person."""
    for name, below in zip(LINE, LINE[1:], strict=False):
        is_last = below == "asks"
        call = (
            "{name: asks, arguments: {who: bottom}}"
            if is_last
            else f"{{name: ask_{below}, arguments: {{message: go}}}}"
        )
        script = f'- {{tool_calls: [{call}]}}\n- {{text: "{name}({{results}})"}}\n'
        an_agent(rig, name, script, agents=[] if is_last else [below])


def an_agent(rig: Rig, name: str, script: str, *, agents: list[str]) -> None:
    rig.agent(name, f"scripted:{name}.yaml", script)
    offers = f"agents = {json.dumps(agents)}\n" if agents else 'tools = ["rig_questions"]\n'
    (rig.room / "agents" / f"{name}.toml").write_text(f'model = "scripted:{name}.yaml"\n{offers}')


def command(rig: Rig, *arguments: str) -> str:
    """`chordage ...` as typed in a shell."""
    done = subprocess.run(
        [sys.executable, "-m", "chordage.workers.cli", *arguments], env=rig.env, text=True, capture_output=True,
        check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def inbox(rig: Rig, root: str) -> list[dict[str, Any]]:
    return list(json.loads(command(rig, "inbox", "--root", root, "--json")))


def a_fleet(rig: Rig) -> None:
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    rig.worker("tools", "--role", "tools", "--concurrency", "2")
    rig.ready()


def test_a_question_three_deep_outlives_every_process_and_is_approved_at_the_root(make_rig, database_url):
    rig = make_rig(database_url, budgets={"chat": 1})
    a_line_of_agents(rig)
    a_fleet(rig)
    turn = rig.submit(Plan(id="deep"), "root", agent="lead")
    until(lambda: len(rig.rows("runs", status="waiting")) == 3, "the whole line waits")
    for worker in rig.workers.values():
        worker.kill()
    rig.broker.kill()
    rig.broker.start()
    assert rig.restart_the_dead() == ["turns", "tools"]
    rig.ready()

    (question,) = inbox(rig, "root")
    assert (question["path"], question["agent"], question["root_thread"]) == ("lead/editor/scout", "scout", "root")
    assert inbox(rig, "another") == []
    command(rig, "approve", question["id"], "--payload", "true")
    rig.wait_until_done()

    assert rig.answer(turn) == "lead(editor(scout(asks bottom)))"
    shown = command(rig, "show", turn)
    assert "agent  editor: answered" in shown
    check_all(rig.runtime.store)


def at_work(rig: Rig) -> list[dict[str, Any]]:
    return rig.rows("runs", status="running")


@pytest.mark.postgres
def test_a_hundred_children_keep_within_the_budget_though_every_slot_was_a_parents(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("postgres"), budgets={"chat": 2})
    asked = ", ".join("{name: ask_scout, arguments: {message: go}}" for _ in range(25))
    an_agent(rig, "lead", f'- {{tool_calls: [{asked}]}}\n- {{text: "{{results}}"}}\n', agents=["scout"])
    an_agent(rig, "scout", '- {text: "here"}\n', agents=[])
    a_fleet(rig)
    turns = [rig.submit(Plan(id=f"wide{n}"), f"t{n}", agent="lead") for n in range(4)]
    seen: list[int] = []
    # A parent that its last child resumes continues whatever the budget, and has no place in it (ADR 52).
    rig.wait_until_done(meanwhile=lambda: seen.append(sum(run["place"] is not None for run in at_work(rig))))

    assert max(seen) <= 2
    assert len(rig.rows("runs")) == 4 * 26
    assert [rig.answer(turn).count("here") for turn in turns] == [25] * 4
    check_all(rig.runtime.store)
