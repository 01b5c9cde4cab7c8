"""`agents`: the versions that a fleet uses and the open runs that began with older ones, for people and programs."""

from __future__ import annotations

import json
from contextlib import closing

from sqlalchemy import text

from chordage.config.settings import load
from chordage.orchestrator.store.database import Store
from chordage.workers.cli.agents import COLUMNS, OF_ONE


def used(chordage) -> str:
    """A turn is carried out; the version of its agent."""
    chordage("migrate")
    assert chordage("invoke", "hello").exit_code == 0
    return str(json.loads(chordage("agents", "ada", "--json").stdout)["versions"][0]["digest"])


def test_agents_are_listed_before_anything_has_run(chordage):
    chordage("migrate")

    lines = [line.split("\t") for line in chordage("agents").stdout.splitlines()]

    assert [(line[0], len(line)) for line in lines] == [("ada", len(COLUMNS)), ("bob", len(COLUMNS))]
    assert [line[2:] for line in lines] == [["-", "-", "0", "0", "-"]] * 2


def test_a_version_that_was_used_is_on_record(chordage):
    digest = used(chordage)

    (line,) = (line.split("\t") for line in chordage("agents", "ada").stdout.splitlines()[1:])

    assert (len(line), line[0], line[3:]) == (len(OF_ONE), digest[:12], ["0", "0", "-", "-"])
    assert json.loads(chordage("agents", "--json").stdout)[0]["digest"] == digest


def test_two_versions_are_compared(chordage, room):
    old = used(chordage)
    file = room / "agent.toml"
    file.write_text('instructions = "Be brief."\n' + file.read_text())
    new = used(chordage)

    text = chordage("agents", "ada", "--diff", old[:8], new[:8]).stdout

    assert old != new
    assert text.splitlines()[:2] == [f"--- instructions {old[:12]}", f"+++ instructions {new[:12]}"]
    assert "+Be brief." in text
    assert chordage("agents", "ada", "--diff", new, new).stdout == "the two are the same\n"
    assert json.loads(chordage("agents", "ada", "--diff", old, new, "--json").stdout)["old"] == old


def test_a_version_that_is_not_on_record_is_refused_with_those_that_are(chordage):
    digest = used(chordage)

    refused = chordage("agents", "ada", "--diff", "ffffff", digest)

    assert refused.exit_code != 0
    assert f"has no version 'ffffff' on record; there are: {digest[:12]}" in refused.output


def test_a_comparison_needs_an_agent(chordage):
    refused = chordage("agents", "--diff", "a", "b")

    assert refused.exit_code == 2
    assert "name the agent whose versions are to be compared" in refused.output


def test_an_agent_that_is_not_there_is_refused(chordage):
    chordage("migrate")

    refused = chordage("agents", "adda")

    assert refused.exit_code != 0
    assert "did you mean ada?" in refused.output


def test_open_runs_adopt_the_version_here(chordage, room):
    old = used(chordage)
    store = Store(load(room=room).database)
    with closing(store), store.write() as tx:
        tx.execute(text("UPDATE runs SET status = 'waiting', reason = 'suspended', ended_at = NULL"))
    file = room / "agent.toml"
    file.write_text('instructions = "Be brief."\n' + file.read_text())

    told = chordage("agents", "ada", "--adopt").stdout.splitlines()

    assert told == ["from their next step, the version here is that of 1 open run of ada", f"  1 of version {old[:12]}"]
    assert json.loads(chordage("agents", "ada", "--adopt", "--json").stdout) == {"agent": "ada", "runs": 0, "from": {}}
    refused = chordage("agents", "--adopt")
    assert (refused.exit_code, "name the agent whose open runs are meant" in refused.output) == (2, True)
