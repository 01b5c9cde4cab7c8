"""From the names in an agent's file to its plugin set, with everything that can be wrong on the way."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from chordage import RoomError
from chordage.orchestrator.core.agent import PluginUse
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.plugins import loading
from chordage.orchestrator.plugins.base import OptionRefused, Plugin
from chordage.orchestrator.plugins.loading import plugin_set_of


class Mine(Plugin):
    id = "mine"
    after = ("stops",)

    def __init__(self, *, level, colour="red"):
        if colour == "blue":
            raise OptionRefused("colour", "blue is taken; choose another")
        if level > 9:
            raise OverflowError("too high")
        self.seen = (level, colour)


class Anything(Plugin):
    id = "anything"

    def __init__(self, **options):
        self.options = options


class Bare(Plugin):
    id = "bare"


class Stranger:
    id = "stranger"


NAME = "plugins_of_a_test"


@pytest.fixture(autouse=True)
def module(monkeypatch):
    """These classes under a name that an agent's file could have."""
    module = type(sys)(NAME)
    for kind in (Mine, Anything, Bare, Stranger):
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, NAME, module)


def use(name, **options):
    return PluginUse(use=name, options=options)


def fault(*uses):
    with pytest.raises(RoomError) as refusal:
        plugin_set_of(uses)
    return str(refusal.value)


def offer(monkeypatch, name, value):
    point = EntryPoint(name=name, value=value, group="chordage.plugins")
    monkeypatch.setattr(loading, "entry_points", lambda *, group: [point] if group == "chordage.plugins" else [])


def test_no_plugins_are_an_empty_set():
    assert not any(plugin_set_of([]).listens(hook) for hook in Hook)


def test_shipped_plugins_are_known_by_name():
    plugins = plugin_set_of([use("tracing"), use("stops", max_rounds=3), use("permission", default="allow")])

    assert plugins.ids == ("tracing", "stops", "permission")


def test_custom_plugin_is_an_import_path():
    plugins = plugin_set_of(
        [use(f"{NAME}:Mine", level=2), use("stops"), use(f"{NAME}:Bare"), use(f"{NAME}:Anything", a=1)]
    )

    assert plugins.ids == ("stops", "mine", "bare", "anything")
    assert (plugins.plugins[1].seen, plugins.plugins[3].options) == ((2, "red"), {"a": 1})


def test_an_entry_point_is_known_by_its_name(monkeypatch):
    offer(monkeypatch, "fancy", f"{NAME}:Bare")

    assert plugin_set_of([use("fancy")]).ids == ("bare",)


def test_name_of_a_shipped_plugin_cannot_be_taken(monkeypatch):
    offer(monkeypatch, "stops", f"{NAME}:Bare")

    assert plugin_set_of([use("stops")]).ids == ("stops",)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (use("stop"), "plugin 2 ('stop'): there is no such plugin; did you mean stops? One of your own is"),
        (use("zzz"), "there is no such plugin; there are: permission, stops, tracing. One of your own"),
        (use("no_such_module_here:X"), "there is no module no_such_module_here; put no_such_module_here.py into the"),
        (use(f"{NAME}:Missing"), f"module {NAME} has no 'Missing'; there are: Anything, Bare, Mine"),
        (use("json:dumps"), "json:dumps is no plugin class; derive it from chordage.orchestrator.plugins.base.Plugin"),
        (use("json:nothing"), "module json has no 'nothing'; there is no plugin class in it"),
        (use(f"{NAME}:Stranger"), "is no plugin class"),
        (use("chordage.orchestrator.plugins.base:Plugin"), "is no plugin class"),
        (use("stops", max_round=1), "('stops', option max_round): there is no such option; did you mean max_rounds?"),
        (use("tracing", level=1), "('tracing', option level): there is no such option; there are: none"),
        (use(f"{NAME}:Bare", x=1), "there is no such option; there are: none"),
        (use(f"{NAME}:Mine"), "the option 'level' is missing"),
        (use(f"{NAME}:Mine", level=1, colour="blue"), "option colour): blue is taken; choose another"),
        (use(f"{NAME}:Mine", level=10), "Mine(...) raised OverflowError: too high"),
        (use(f"{NAME}:Mine", level="x"), "Mine(...) raised TypeError: "),
        (use("stops", timeout=0), "plugin 2 ('stops', option timeout): must be a number of more than 0"),
    ],
)
def test_a_plugin_that_cannot_be_had_is_named_with_what_to_do(asked, said):
    assert said in fault(use("permission"), asked)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('not today')", "importing module broken_plugins raised ValueError: not today"),
        ("raise SystemExit(1)", "importing module broken_plugins raised SystemExit: 1"),
        ("import no_such_thing", "importing module broken_plugins raised ModuleNotFoundError: No module named 'no_su"),
        ("(", "importing module broken_plugins raised SyntaxError: "),
    ],
)
def test_module_that_cannot_be_imported_is_reported_with_its_error(text, said, tmp_path, monkeypatch):
    (tmp_path / "broken_plugins.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    assert said in fault(use("broken_plugins:X"))


def test_entry_point_that_cannot_be_loaded_is_reported(monkeypatch):
    offer(monkeypatch, "fancy", f"{NAME}:Gone")

    said = fault(use("fancy"))
    assert f"its entry point {NAME}:Gone cannot be loaded (AttributeError: " in said
    assert said.endswith("repair or remove the package that offers it")


def test_entry_point_that_is_no_plugin_is_reported(monkeypatch):
    offer(monkeypatch, "fancy", f"{NAME}:Stranger")

    assert "fancy is no plugin class" in fault(use("fancy"))


def test_two_plugins_of_one_id_are_refused():
    assert "plugin id 'stops' is used 2 times (Stops, Stops)" in fault(use("stops"), use("stops"))
