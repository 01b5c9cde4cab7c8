"""Versions of agents over HTTP and in the console: who sees them, how two differ, and that their text stays text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.agent_versions import AgentVersion, plain, version_of
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.store import agent_versions
from support import console_room
from support.console_room import HOSTILE, log_in
from support.web_server import PROBLEM

pytestmark = pytest.mark.redis

READS = (KeyScope.READ, KeyScope.PAYLOADS, KeyScope.OPERATE)
FIRST = AgentSpec(name="ada", model="scripted:script.yaml", instructions="Be kind.\nthe word is sesame")
SECOND = replace(FIRST, instructions=f"Be kind.\n{HOSTILE}")


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = console_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


@pytest.fixture
def pair(rt) -> tuple[AgentVersion, AgentVersion]:
    """Two versions on record; a process uses the second."""
    old, new = (version_of("ada", {"agent": plain(spec)}) for spec in (FIRST, SECOND))
    for version in (old, new):
        with rt.store.write() as tx:
            agent_versions.insert(tx, version, now=rt.now(), by="0.1")
    stages.show_presence(rt, [Process(id="w1", machine="m", pid=1, born="b", agents={"ada": new.digest})])
    return old, new


def test_agents_say_which_versions_are_in_use(client, pair, key):
    old, new = pair

    (line,) = client.get("/agents", headers=key(*READS)).json()["data"]
    agent = client.get("/agents/ada", headers=key(*READS)).json()

    assert (line["in_use"], line["open_runs"], line["open_runs_on_old"]) == ([new.digest], 0, 0)
    assert line["digest"] == agent["digest"] is not None
    by_digest = {version["digest"]: version for version in agent["versions"]}
    assert (by_digest[new.digest]["processes"], by_digest[new.digest]["is_old"]) == (["w1"], False)
    assert (by_digest[old.digest]["processes"], by_digest[old.digest]["is_old"]) == ([], True)


@pytest.mark.usefixtures("pair")
def test_the_key_of_a_tenant_does_not_see_the_versions_of_the_fleet(client, key):
    headers = key(*READS, tenant="acme")

    (line,) = client.get("/agents", headers=headers).json()["data"]
    agent = client.get("/agents/ada", headers=headers).json()

    assert (line["in_use"], line["open_runs"], agent["versions"], agent["open_runs"]) == (None, None, None, None)


def test_two_versions_are_compared_line_by_line(client, pair, key):
    old, new = pair

    answer = client.get("/agents/ada/diff", params={"old": old.digest[:8], "new": new.digest}, headers=key(*READS))

    assert (answer.status_code, answer.json()["old"], answer.json()["new"]) == (200, old.digest, new.digest)
    lines = [(line["kind"], line["text"]) for line in answer.json()["lines"]]
    assert ("same", " Be kind.") in lines
    assert ("removed", "-the word is sesame") in lines


@pytest.mark.parametrize(
    ("scopes", "terms", "why"),
    [
        ((KeyScope.READ, KeyScope.OPERATE), {}, "needs the scope 'payloads'"),
        ((KeyScope.READ, KeyScope.PAYLOADS), {}, "does not see the files of the room"),
        (READS, {"tenant": "acme"}, "does not see the files of the room"),
    ],
)
def test_a_comparison_needs_payloads_and_the_whole_fleet(client, pair, key, scopes, terms, why):
    old, new = pair

    answer = client.get(
        "/agents/ada/diff", params={"old": old.digest, "new": new.digest}, headers=key(*scopes, **terms)
    )

    assert (answer.status_code, answer.headers["content-type"]) == (403, PROBLEM)
    assert why in answer.json()["detail"]
    assert "sesame" not in answer.text


def test_a_key_for_other_agents_does_not_compare_this_one(client, pair, key):
    old, new = pair
    params = {"old": old.digest, "new": new.digest}

    assert client.get("/agents/ada/diff", params=params, headers=key(*READS, agents=("bob",))).status_code == 404


@pytest.mark.parametrize(
    ("old", "status", "words"),
    [
        ("f" * 32, 404, "has no version"), ("ffffff", 404, "there are: "), ("abc", 422, "old"),
        ("xyzxyzxyz", 422, "old"),
    ],
)  # fmt: skip
def test_a_version_that_is_not_on_record_is_refused(client, pair, key, old, status, words):
    answer = client.get("/agents/ada/diff", params={"old": old, "new": pair[1].digest}, headers=key(*READS))

    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    assert words in answer.text


# The console.


def test_the_page_of_agents_lists_the_versions(client, rt, pair):
    page = log_in(client, rt.store).get("/console/agents").text

    for version in pair:
        assert f"<code>{version.digest[:12]}</code>" in page


def test_the_page_of_a_comparison_marks_lines_and_keeps_their_text_inert(client, rt, pair):
    old, new = pair
    page = log_in(client, rt.store).get("/console/agents/ada/diff", params={"old": old.digest, "new": new.digest})

    assert page.status_code == 200
    assert '<span class="bad-text">-the word is sesame</span>' in page.text
    assert "<span>+&lt;/textarea&gt;&lt;/script&gt;&lt;script&gt;alert(1)" in page.text
    assert "<script>alert(1)" not in page.text
    assert "\u202e" not in page.text


def test_without_a_choice_the_two_newest_are_compared(client, rt, pair):
    page = log_in(client, rt.store).get("/console/agents/ada/diff").text

    assert all(version.digest in page for version in pair)
    assert "The two are the same" not in page


def test_one_version_is_the_same_as_itself(client, rt, pair):
    digest = pair[0].digest
    page = log_in(client, rt.store).get("/console/agents/ada/diff", params={"old": digest, "new": digest})

    assert "The two are the same." in page.text


def test_an_agent_without_a_version_on_record_has_nothing_to_compare(client, rt):
    page = log_in(client, rt.store).get("/console/agents/ada/diff")

    assert page.status_code == 404
    assert "no process has used it yet" in page.text
