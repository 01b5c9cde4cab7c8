"""An agent whose file is broken: its last good version serves, also in a process that starts meanwhile."""

from __future__ import annotations

import pytest

from chordage import RoomError, UnknownAgent
from chordage.orchestrator.core.errors import BrokenAgent
from chordage.orchestrator.gateways.room.reading import Copies
from chordage.workers.bootstrap import check_agent, models_of

HALF = 'model = "two"\nname = '
TOOLS = 'from chordage import tool\n\n@tool(effect="pure")\ndef look(n: int) -> int:\n    """Look."""\n    return n\n'


def serving(folder):
    return folder.open(copies=Copies(folder.path / ".chordage" / "agents"))


def carrying_out(folder):
    """As a worker opens its room."""
    room = serving(folder)
    room.require(lambda agent: check_agent(room, models_of(room), agent, time_limit=900))
    return room


def test_the_last_good_version_serves_until_its_file_is_repaired(folder):
    folder.agent('model = "one"\nname = "clerk"')
    room = folder.open()
    folder.agent(HALF)
    assert (room.get("clerk").model, room.get(None).model, room.names()) == ("one", "one", ["clerk"])
    assert [str(fault) for fault in room.faults] == ["agent.toml:2: this is not TOML: Invalid value"]
    folder.agent('model = "two"\nname = "clerk"')
    assert (room.get("clerk").model, room.faults) == ("two", [])


def test_a_process_that_starts_while_a_file_is_broken_serves_the_copy_of_another(folder):
    folder.agent('model = "one"\nname = "clerk"\n[models.local]\nbase_url = "http://127.0.0.1:9/v1"')
    serving(folder)
    folder.agent(HALF)
    room = serving(folder)
    assert room.get("clerk").model == "one"
    assert room.get(None).name == "clerk"
    assert list(room.providers()) == ["local"]
    assert len(room.faults) == 1


def test_single_lookup_gets_the_fault_and_leaves_no_copy(folder):
    folder.agent('model = "one"\nname = "clerk"')
    folder.open()
    assert [path.name for path in folder.path.iterdir()] == ["agent.toml"]
    folder.agent(HALF)
    with pytest.raises(BrokenAgent, match="agent.toml:2: this is not TOML"):
        folder.open().get(None)


def test_an_agent_that_was_taken_away_has_no_copy_any_more(folder):
    folder.agent()
    other = folder.agent('model = "old"', "agents/beta.toml")
    room = serving(folder)
    other.unlink()
    with pytest.raises(UnknownAgent):
        room.get("beta")
    folder.agent("half", "agents/beta.toml")
    with pytest.raises(BrokenAgent):
        serving(folder).get("beta")


def test_a_folder_that_cannot_be_written_costs_the_copies_alone(folder):
    folder.agent('model = "one"')
    folder.write(".chordage", "a file where the folder should be")
    room = serving(folder)
    folder.agent(HALF)
    assert room.get(None).model == "one"
    with pytest.raises(BrokenAgent):
        serving(folder).get(None)


def test_unreadable_file_may_hold_any_requested_agent(folder):
    folder.agent()
    folder.agent(HALF, "agents/clerk-file.toml")
    with pytest.raises(BrokenAgent, match="there is no agent 'clerk'.*\n.*agents/clerk-file.toml:2: this is not TOML"):
        folder.open().get("clerk")
    folder.agent("model = 5", "agents/clerk-file.toml")
    with pytest.raises(UnknownAgent):
        folder.open().get("clerk")


def test_a_name_that_another_file_has_taken_since_is_not_taken_back(folder):
    folder.agent('model = "one"\nname = "clerk"')
    folder.agent('model = "other"', "agents/beta.toml")
    room = folder.open()
    folder.agent(HALF)
    folder.agent('model = "other"\nname = "clerk"', "agents/beta.toml")
    assert room.get("clerk").model == "other"
    assert room.names() == ["clerk"]


def test_a_version_whose_tools_cannot_be_loaded_is_not_taken_up_by_a_worker(folder):
    folder.write("s.yaml", "- text: hi\n")
    folder.write("good_tools_of_this_test.py", TOOLS)
    folder.agent('model = "scripted:s.yaml"\ntools = ["good_tools_of_this_test"]')
    room = carrying_out(folder)
    assert list(room.toolbox.specs(room.get(None))) == ["look"]

    folder.agent('model = "scripted:s.yaml"\nconcurrency = 3\ntools = ["bad_tools_of_this_test"]')
    folder.write("bad_tools_of_this_test.py", "from nowhere import nothing\n")
    assert list(room.toolbox.specs(room.get(None))) == ["look"]

    folder.write("bad_tools_of_this_test.py", TOOLS.replace("look", "peek"))
    assert list(room.toolbox.specs(room.get(None))) == ["peek"]
    assert room.get(None).concurrency == 3


def test_a_worker_that_starts_with_a_broken_tool_refuses_that_agent_alone(folder):
    folder.write("s.yaml", "- text: hi\n")
    folder.write("late_tools_of_this_test.py", "raise RuntimeError('half saved')\n")
    folder.agent('model = "scripted:s.yaml"')
    folder.agent('model = "scripted:s.yaml"\ntools = ["late_tools_of_this_test"]', "agents/beta.toml")
    room = carrying_out(folder)
    assert room.get(None).name == "agent"
    with pytest.raises(BrokenAgent, match="agents/beta.toml:2: tools: .*half saved"):
        room.get("beta")

    folder.write("late_tools_of_this_test.py", TOOLS)
    assert list(room.toolbox.specs(room.get("beta"))) == ["look"]


def test_a_model_that_lacks_its_key_stops_its_agent_alone(folder):
    folder.write("s.yaml", "- text: hi\n")
    folder.agent('model = "scripted:s.yaml"')
    folder.agent('model = "openai:m"\n[models.openai]\napi_key_env = "NO_SUCH_KEY_HERE"', "agents/beta.toml")
    folder.agent('model = "odd:m"\n[models.odd]\nwire = "openai"', "agents/gamma.toml")
    room = carrying_out(folder)
    assert room.get(None).name == "agent"
    for name, told in (("beta", "NO_SUCH_KEY_HERE"), ("gamma", "base_url must be an address")):
        with pytest.raises(BrokenAgent, match=told) as refusal:
            room.get(name)
        assert isinstance(refusal.value, RoomError)
