"""What an agent file may say of its rounds and its plugins, and how each mistake in it is reported."""

from __future__ import annotations

import pytest

from chordage import RoomError
from chordage.orchestrator.core.agent import (
    AgentSpec,
    MixedRound,
    OnUnknown,
    PluginUse,
    ToolMode,
    WhenBusy,
    WhileWaiting,
)
from chordage.orchestrator.plugins.loading import plugin_set_of

EVERYTHING = """
model = "m"
tool_mode = "sequential"
mixed_round = "wait"
on_unknown = "fail"
while_waiting = "hold"
when_busy = "steer"

[permission]
allow = ["search"]
default = "deny"

[stops]
max_rounds = 7

[[plugins]]
use = "tracing"

[[plugins]]
use = "my_plugins:Greeter"
greeting = "hello"
"""

GREETER = """
from chordage.orchestrator.plugins.base import OptionRefused, Plugin

class Greeter(Plugin):
    id = "greeter"

    def __init__(self, *, greeting):
        if greeting == "bye":
            raise OptionRefused("greeting", "is a farewell")
"""


@pytest.fixture
def plugins_file(folder):
    return folder.write("my_plugins.py", GREETER)


def fault(folder, text):
    folder.agent(text)
    with pytest.raises(RoomError) as refusal:
        folder.open().get(None)
    return str(refusal.value)


def test_every_key_reaches_the_definition(folder, plugins_file):
    folder.agent(EVERYTHING)
    spec = folder.open().get(None)

    assert spec == AgentSpec(
        name="agent",
        model="m",
        tool_mode=ToolMode.SEQUENTIAL,
        mixed_round=MixedRound.WAIT,
        on_unknown=OnUnknown.FAIL,
        while_waiting=WhileWaiting.HOLD,
        when_busy=WhenBusy.STEER,
        plugins=(
            PluginUse(use="permission", options={"allow": ["search"], "default": "deny"}),
            PluginUse(use="stops", options={"max_rounds": 7}),
            PluginUse(use="tracing"),
            PluginUse(use="my_plugins:Greeter", options={"greeting": "hello"}),
        ),
    )
    assert plugin_set_of(spec.plugins).ids == ("permission", "stops", "tracing", "greeter")


def test_an_empty_table_is_a_plugin_without_options(folder):
    folder.agent('model = "m"\n[permission]\n')

    assert folder.open().get(None).plugins == (PluginUse(use="permission"),)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("[stops]\ntimeout = 5\nmax_tool_calls = 3", (5, 3)),
        ("[stops]\ntimeout = 5\n[limits]\ntimeout = 4\nmax_tool_calls = 2", (4, 2)),
        ("[stops]\ntimeout = 4\nmax_tool_calls = 2\n[limits]\ntimeout = 5\nmax_tool_calls = 3", (4, 2)),
        ('[limits]\ntimeout = 9\n[[plugins]]\nuse = "stops"\ntimeout = 8.5', (8.5, None)),
        ("[stops]\nmax_rounds = 2", (None, None)),
    ],
)
def test_time_and_calls_in_stops_are_limits_of_the_run_and_the_lower_one_counts(folder, text, limits):
    folder.agent(f'model = "m"\n{text}\n')
    found = folder.open().get(None).limits
    assert (found.timeout, found.max_tool_calls) == limits


def test_plugins_may_be_on_one_line(folder, plugins_file):
    folder.agent('model = "m"\nplugins = [{ use = "my_plugins:Greeter", greeting = "hello" }]\n')

    assert folder.open().get(None).plugins == (PluginUse(use="my_plugins:Greeter", options={"greeting": "hello"}),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'tool_mode = "one"',
            "agent.toml:2: tool_mode: must be one of parallel, parallel_batch, sequential, or leave it out; got 'one'",
        ),
        ('mixed_round = "stop"', "agent.toml:2: mixed_round: must be one of continue, wait, or leave it out"),
        ("on_unknown = true", "agent.toml:2: on_unknown: must be one of ask, fail, or leave it out; got True"),
        ('when_busy = "drop"', "agent.toml:2: when_busy: must be one of enqueue, reject, interrupt, rollback, steer"),
        ('while_waiting = "drop"', "agent.toml:2: while_waiting: must be one of supersede, hold, or leave it out"),
        ('tool_modes = "x"', "agent.toml:2: tool_modes: there is no such key; did you mean tool_mode?"),
        ("stops = 3", "agent.toml:2: stops: must be a table, or leave it out; got 3"),
        (
            "[stops]\n# none\nmax_rounds = 0",
            "agent.toml:4: stops.max_rounds: must be a whole number, 1 or more; for no limit leave it out; got 0",
        ),
        ("[stops]\nrounds = 3", "agent.toml:3: stops.rounds: there is no such option; did you mean max_rounds?"),
        (
            '[stops]\ntool_mode = "parallel"',
            "agent.toml:3: stops.tool_mode: there is no such option; write tool_mode above the first [table]",
        ),
        ('[permission]\ndeny = ["a b"]', "agent.toml:3: permission.deny: 'a b' is no rule; write `tool`"),
        ('plugins = "stops"', "agent.toml:2: plugins: must be a list of tables, each under [[plugins]], or leave it"),
        ("[plugins]\na = 1", "agent.toml:2: plugins: must be a list of tables, each under [[plugins]]"),
        ("[[plugins]]\n", 'agent.toml:2: plugins: each needs `use = "..."`, the name of a plugin or module:Class'),
        ("[[plugins]]\nuse = 3", 'use = "..."`, the name of a plugin or module:Class; got 3'),
        ('[[plugins]]\nuse = "stop"', "agent.toml:2: plugins: 'stop': there is no such plugin; did you mean stops?"),
        (
            '[[plugins]]\nuse = "tracing"\n\n[[ plugins ]]\nuse = "stops"\n\ntimeout = -1\n',
            "agent.toml:8: plugins.timeout: 'stops': must be a number of more than 0",
        ),
        (
            'plugins = [\n{ use = "tracing" },\n{ use = "stops", timeout = 0 }]',
            "agent.toml:2: plugins.timeout: 'stops': must be a number of more than 0",
        ),
        (
            '[stops]\n[[plugins]]\nuse = "stops"\n',
            "agent.toml:3: plugins: plugin id 'stops' is used 2 times (Stops, Stops); keep one",
        ),
        (
            '[[plugins]]\nuse = "my_plugins:Greeter"\n[limits]\nmax_rounds = 2\n',
            "agent.toml:2: plugins: 'my_plugins:Greeter': the option 'greeting' is missing",
        ),
        (
            '[[plugins]]\nuse = "my_plugins:Greeter"\ngreeting = "bye"\n',
            "agent.toml:4: plugins.greeting: 'my_plugins:Greeter': is a farewell",
        ),
        (
            '[[plugins]]\nuse = "no_plugins_here:X"\n',
            "agent.toml:2: plugins: 'no_plugins_here:X': there is no module no_plugins_here; put no_plugins_here.py",
        ),
    ],
)  # fmt: skip
def test_mistake_is_reported_with_its_place_and_remedy(folder, plugins_file, text, said):
    assert said in fault(folder, f'model = "m"\n{text}')


def test_all_mistakes_of_a_file_are_reported_at_once(folder):
    said = fault(folder, 'tool_mode = "x"\n[stops]\ntimeout = 0\n[[plugins]]\nuse = "y"\n[[plugins]]\nuse = "z"\n')

    assert [line.split(":")[1] for line in sorted(said.splitlines(), key=lambda one: one.split(":")[1])] == [
        "1", "1", "3", "4", "6",
    ]  # fmt: skip


def test_a_plugin_that_was_repaired_is_tried_again(folder):
    folder.write("other_plugins.py", "raise ValueError('half written')")
    folder.agent('model = "m"\n[[plugins]]\nuse = "other_plugins:Greeter"\ngreeting = "hello"\n')
    room = folder.open()
    with pytest.raises(RoomError, match="importing module other_plugins raised ValueError: half written"):
        room.get(None)

    folder.write("other_plugins.py", GREETER)

    assert room.get(None).plugins[0].use == "other_plugins:Greeter"


def test_a_broken_plugin_stops_no_other_agent(folder):
    folder.agent('model = "m"')
    folder.agent('model = "m"\n[[plugins]]\nuse = "x"\n', "agents/second.toml")
    room = folder.open()

    assert room.names() == ["agent"]
    assert str(room.faults[0]).startswith("agents/second.toml:2: plugins: 'x': there is no such plugin")
