"""Several agents in one room: which is the default, what a broken file stops, and when files are read again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from chordage import RoomError, UnknownAgent
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.gateways.room.reading import RoomReading
from support.waiting import until


def test_agent_toml_is_the_default_and_comes_first(folder):
    folder.agent('model = "m"\nname = "zed"')
    folder.agent('model = "m"', "agents/alpha.toml")
    room = folder.open()
    assert room.names() == ["zed", "alpha"]
    assert room.get(None).name == "zed"
    assert room.get("alpha").name == "alpha"


def test_only_agent_is_the_default_wherever_its_file_is(folder):
    folder.agent('model = "m"', "agents/alpha.toml")
    assert folder.open().get(None).name == "alpha"


def test_of_several_none_is_the_default_without_agent_toml(folder):
    folder.agent('model = "m"', "agents/alpha.toml")
    folder.agent('model = "m"', "agents/beta.toml")
    with pytest.raises(UnknownAgent, match="no agent is the default; name one of alpha, beta, or write an agent.toml"):
        folder.open().get(None)


def test_unknown_agent_is_reported_with_the_existing_ones_and_the_faults(folder):
    folder.agent()
    folder.agent("model = 5", "agents/broken.toml")
    with pytest.raises(UnknownAgent) as refusal:
        folder.open().get("nobody")
    assert "there is no agent 'nobody'; there are: agent\n" in str(refusal.value)
    assert "agents/broken.toml:1: model: must be a text" in str(refusal.value)


def test_a_broken_file_stops_only_its_own_agent(folder):
    folder.agent()
    folder.agent('model = "m"\nname = "beta"\nstream = 3', "agents/b.toml")
    folder.agent("no toml at all", "agents/c.toml")
    room = folder.open()
    assert room.names() == ["agent"]
    assert [str(fault).partition(":")[0] for fault in room.faults] == ["agents/b.toml", "agents/c.toml"]
    for broken in ("beta", "c"):
        with pytest.raises(RoomError, match="agents/"):
            room.get(broken)


def test_a_broken_default_stops_only_the_default(folder):
    folder.agent("oops")
    folder.agent('model = "m"', "agents/alpha.toml")
    room = folder.open()
    assert room.get("alpha").name == "alpha"
    with pytest.raises(RoomError, match="agent.toml:1: this is not TOML"):
        room.get(None)


def test_two_agents_of_one_name_are_one_agent_and_a_fault(folder):
    folder.agent('model = "first"\nname = "twin"')
    folder.agent('model = "second"\n\nname = "twin"', "agents/other.toml")
    room = folder.open()
    assert room.get("twin").model == "first"
    assert [str(fault) for fault in room.faults] == [
        "agents/other.toml:3: name: 'twin' is the name of the agent in agent.toml already; rename one"
    ]


def test_a_provider_described_twice_must_be_the_same(folder):
    folder.agent('model = "m"\n[models.x]\nwire = "openai"')
    folder.agent('model = "m"\n[models.x]\nwire = "openai"', "agents/same.toml")
    folder.agent('model = "m"\n[models.x]\nwire = "anthropic"', "agents/unlike.toml")
    room = folder.open()
    assert room.names() == ["agent", "same"]
    assert [str(fault) for fault in room.faults] == [
        "agents/unlike.toml:2: models.x: is described differently in agent.toml; keep one of the two"
    ]
    assert room.providers() == {"x": {"wire": "openai"}}


def test_a_changed_file_is_read_again(folder):
    folder.agent('model = "one"')
    room = folder.open()
    assert room.get(None).model == "one"
    folder.agent('model = "other"')
    assert room.get(None).model == "other"


def test_files_that_come_and_go_are_noticed(folder):
    first = folder.agent()
    room = folder.open()
    folder.agent('model = "m"', "agents/alpha.toml")
    assert room.names() == ["agent", "alpha"]
    first.unlink()
    assert room.get(None).name == "alpha"


def test_a_fault_is_gone_when_its_file_is_mended(folder):
    folder.agent("model = 5")
    room = folder.open()
    assert len(room.faults) == 1
    folder.agent()
    assert room.faults == []
    assert room.get(None).model == "m"


def test_instructions_are_read_again_also_when_the_file_was_missing(folder):
    folder.agent('model = "m"\ninstructions_file = "brief.md"')
    room = folder.open()
    assert len(room.faults) == 1
    folder.write("brief.md", "Be brief.")
    assert room.get(None).instructions == "Be brief."
    folder.write("brief.md", "Be brief, please.")
    assert room.get(None).instructions == "Be brief, please."


def test_files_are_not_looked_at_within_the_interval(folder):
    folder.agent('model = "one"')
    room = Room(folder.path, look_again=3600)
    folder.agent('model = "other"')
    assert room.get(None).model == "one"


def test_before_an_agent_is_refused_the_files_are_looked_at_again(folder):
    folder.agent('model = "one"')
    folder.write("agents/broken.toml", 'name = "broken"')
    opened = Room(folder.path, look_again=3600)
    folder.write("agents/fresh.toml", 'name = "fresh"\nmodel = "two"')
    folder.write("agents/broken.toml", 'name = "broken"\nmodel = "three"')
    assert opened.get("fresh").model == "two"
    assert opened.get("broken").model == "three"


def test_a_file_is_found_however_short_a_time_ago_another_was_not(folder):
    folder.agent()
    opened = Room(folder.path, look_again=3600)
    for number in range(20):
        with pytest.raises(UnknownAgent):
            opened.get(f"fresh{number}")
        folder.write(f"agents/fresh{number}.toml", f'name = "fresh{number}"\nmodel = "two"')
        assert opened.get(f"fresh{number}").model == "two"


def test_simultaneous_requests_for_a_missing_agent_share_a_look(folder, monkeypatch):
    folder.agent()
    opened = Room(folder.path, look_again=3600)
    looks, all_have_asked = [], threading.Event()

    def look(reading, path):
        looks.append(path)
        assert all_have_asked.wait(120)
        return False

    def ask(name):
        if name == "last":
            all_have_asked.set()
        with pytest.raises(UnknownAgent):
            opened.get(name)

    monkeypatch.setattr(RoomReading, "is_outdated", look)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, "first")
        until(lambda: looks, "the first looks")
        others = [pool.submit(ask, name) for name in ("a", "b", "c", "d", "e", "last")]
        for one in (first, *others):
            one.result()

    assert len(looks) <= 3, "one for the first, one for those who came meanwhile, one for who came last"


def test_unchanged_room_returns_the_same_definition(folder):
    folder.agent()
    room = folder.open()
    assert room.get(None) is room.get("agent")


def test_threads_may_read_while_files_change(folder):
    folder.agent('model = "one"')
    room, seen = folder.open(), set()

    def ask():
        for _ in range(50):
            seen.add(room.get(None).model)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    [thread.start() for thread in threads]
    folder.write("next.toml", 'model = "other"').replace(folder.path / "agent.toml")
    [thread.join() for thread in threads]
    assert seen <= {"one", "other"}
    assert room.get(None).model == "other"


def test_the_path_is_absolute(folder, monkeypatch):
    folder.agent()
    monkeypatch.chdir(folder.path.parent)
    assert Room(folder.path.relative_to(folder.path.parent)).path == folder.path.resolve()
