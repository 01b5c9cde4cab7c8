"""channels.toml: what may stand in it, and every fault with its place and what to do."""

from __future__ import annotations

from importlib import import_module

import pytest

from chordage.orchestrator.core.channels import Terms
from chordage.orchestrator.core.errors import NotFound, RoomError
from chordage.orchestrator.gateways.channels.room_channels import RoomChannels, faults

GOOD = """
[channels.phone]
plugin = "telegram"
agent = "ada"
every = 3
[channels.phone.config]
token_env = "BOT"
owner_chat_id = "123"

[bare]
plugin = "http_json"
[bare.config]
url = "http://127.0.0.1/messages"
everybody = "service"
headers = { authorization_env = "HEADER", accept = "text/json" }
"""


def fault_texts(channels: RoomChannels) -> list[str]:
    return [str(fault) for fault in channels.faults()]


def test_a_room_without_the_file_has_no_channels(room):
    assert (RoomChannels(room, environ={}).names(), faults(room, {})) == ([], [])


def test_tables_under_channels_and_bare_ones_are_bindings(written):
    channels = written(GOOD, BOT="1:x", HEADER="Bearer y")

    assert fault_texts(channels) == []
    assert channels.names() == ["bare", "phone"]
    assert channels.terms("phone") == Terms(plugin="telegram", agent="ada", every=3)
    assert channels.terms("bare") == Terms(plugin="http_json", agent=None, every=10.0)


def test_a_channel_is_made_once(written):
    channels = written(GOOD, BOT="1:x", HEADER="y")

    assert channels.get("phone") is channels.get("phone")


def test_missing_variable_is_named_with_file_line_and_key_and_the_other_binding_works(written):
    channels = written(GOOD, HEADER="y")

    (fault,) = fault_texts(channels)
    assert fault == (
        "channels.toml:7: channels.phone.config.token_env: the environment variable BOT is not set; "
        "set it, and start again"
    )
    assert channels.get("bare") is not None
    with pytest.raises(RoomError, match="BOT is not set"):
        channels.get("phone")


def test_variables_are_looked_up_at_any_depth(written):
    text = """
[it]
plugin = "room_plugin:make"
[it.config]
list = [{ key_env = "ONE" }, 7]
[it.config.deep.deeper]
key_env = "TWO"
"""
    from chordage.orchestrator.gateways.channels import room_channels

    channels = written(text, ONE="1", TWO="2")
    binding = room_channels.read(channels._room, {"ONE": "1", "TWO": "2"}).bindings["it"]

    assert binding.config == {"list": [{"key": "1"}, 7], "deep": {"deeper": {"key": "2"}}}
    assert binding.secrets == {"1", "2"}
    assert "ONE" not in repr(binding)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[channels.a]\nagent = 'x'", "channels.toml:1: channels.a.plugin: is missing; write `plugin = ...`"),
        ("[a]\nplugin = 7", "channels.toml:2: a.plugin: must be a text that is not blank; got 7"),
        ("[a]\nplugin = 'telegram'\nevery = 0", "channels.toml:3: a.every: must be a number of seconds, more than 0"),
        ("[a]\nplugin = 'telegram'\nagnt = 'x'", "channels.toml:3: a.agnt: there is no such key; did you mean agent?"),
        ("plugin = 'telegram'", "channels.toml:1: plugin: is no table; a binding is written as [channels.plugin]"),
        ("[channels]\na = 1", "channels.toml:2: channels.a: is no table"),
        ("[channels.'a b']\nplugin = 'telegram'", "channels.toml:1: channels.a b: a name has 1 to 64 letters"),
        ("[api]\nplugin = 'telegram'", "channels.toml:1: api: 'api' is the beginning of other threads"),
        ("[channels.task]\nplugin = 'telegram'", "channels.toml:1: channels.task: 'task' is the beginning of other"),
        ("[a]\nplugin = 'telegrm'\n", "channels.toml:2: a.plugin: there is no channel plugin 'telegrm'"),
        ("[a]\nplugin = 'nowhere:make'\n", "there is no module nowhere; put nowhere.py into the room"),
        ("[a]\nplugin = 'json:dumps'\n", "json:dumps raised TypeError"),
        ("[a]\nplugin = 'types:SimpleNamespace'\n", "types:SimpleNamespace raised TypeError"),
        ("[a]\nplugin = 'operator:eq'\n", "what operator:eq makes has no poll, deliver, close"),
        ("[a]\nplugin = 'telegram'\n[a.config]\ntoken_env = 7", "must be the name of an environment variable; got 7"),
        ("[a]\nplugin = 'x'\n[a.config]\nt_env = 'ONE'\nt = 1", "channels.toml:4: a.config.t_env: there is t too"),
        ("[a]\nplugin = 'x'\n[channels.a]\nplugin = 'x'", "there are two bindings 'a'"),
        ("[a\nplugin = 'x'", "channels.toml:1: this is not TOML: "),
        ("[a]\nplugin = 'telegram'", "channels.toml:1: a.config.token: is missing"),
        (
            "[a]\nplugin = 'telegram'\n[a.config]\ntoken = '1'\npoll_timeout_sec = 99\napi_base = 'ftp://x'",
            "channels.toml:5: a.config.poll_timeout_sec: must be at most 50",
        ),
        ("[a]\nplugin = 'imap'\n[a.config]\nhost = 'h'\nuser = 'u'\npassword = 'p'", "is allowed:"),
        (
            "[a]\nplugin = 'imap'\n[a.config]\nhost = 'h'\nuser = 'u'\npassword = 'p'\nallowed_senders = ['ada']",
            "channels.toml:7: a.config.allowed_senders: an address is written like",
        ),
        ("[a]\nplugin = 'http_json'\n[a.config]\nurl = 'http://x'", "is allowed:"),
        ("[a]\nplugin = 'http_json'\n[a.config]\nurl = 'x'\neverybody = 'guest'", "must start with http://"),
        ("[a]\nplugin = 'http_json'\n[a.config]\nurl = 'http://x'\nowners = [1]", "a.config.sender_path: is missing"),
    ],
)  # fmt: skip
def test_every_fault_names_its_place_and_what_to_do(written, text, fault):
    found = fault_texts(written(text, ONE="1"))

    assert all(line.startswith("channels.toml:") for line in found)
    assert fault in "\n".join(found)


def test_one_malformed_binding_stops_no_other(written):
    channels = written(f"[broken]\nplugin = 7\n{GOOD}", BOT="1", HEADER="2")

    assert len(channels.faults()) == 1
    assert channels.names() == ["bare", "broken", "phone"]
    assert channels.get("phone") is not None


def test_unknown_binding_is_reported_with_the_existing_ones(written):
    with pytest.raises(NotFound, match="no channel 'fax'.*; there are: bare, phone"):
        written(GOOD, BOT="1", HEADER="2").get("fax")


def test_unknown_agent_is_reported_with_its_line(written, room):
    written(
        '[a]\nplugin = "http_json"\nagent = "nobody"\n[a.config]\nurl = "http://127.0.0.1/"\neverybody = "service"\n'
    )

    assert [str(fault) for fault in faults(room, {})] == [
        "channels.toml:3: a.agent: there is no agent 'nobody'; there are: none"
    ]


def test_a_file_that_cannot_be_read_is_one_fault(room):
    (room / "channels.toml").write_bytes(b"\xff\xfe")

    (fault,) = faults(room, {})
    assert str(fault).startswith("channels.toml:1: cannot be read")


PLUGIN = """
from chordage.orchestrator.core.channels import Polled
from chordage.orchestrator.core.errors import Unavailable

class Mine:
    def __init__(self, config): self.config = config
    def poll(self, cursor):
        if cursor == "raise": raise RuntimeError(f"no {self.config['token']}")
        if cursor == "wrong": return []
        if cursor == "leave": raise SystemExit(self.config['token'])
        return Polled(messages=(), cursor=cursor)
    def deliver(self, address, reply): raise Unavailable(f"with {self.config['token']}")
    def close(self): pass

def make(name, config):
    if "bad" in config:
        from chordage.orchestrator.plugins.base import OptionRefused
        raise OptionRefused("bad", "is not good")
    return Mine(config)
"""


def own(room, written, config="token_env = 'TOKEN'"):
    (room / "own_channel_plugin.py").write_text(PLUGIN)
    text = f"[it]\nplugin = 'own_channel_plugin:make'\n[it.config]\n{config}"
    return written(text, TOKEN="verysecret")


def test_custom_plugin_is_a_file_in_the_room(room, written):
    channel = own(room, written).get("it")

    assert channel.poll("7").cursor == "7"


def test_error_of_a_custom_plugin_is_reported_without_secrets(room, written):
    from chordage.orchestrator.core.errors import Unavailable

    channel = own(room, written).get("it")
    with pytest.raises(Unavailable, match=r"channel it: its plugin raised RuntimeError: no \*\*\*") as raised:
        channel.poll("raise")
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    with pytest.raises(Unavailable, match=r"channel it: its plugin raised ExitAttempted: SystemExit\('\*\*\*'\)"):
        channel.poll("leave")
    with pytest.raises(Unavailable, match="poll returned list, not Polled"):
        channel.poll("wrong")
    with pytest.raises(Unavailable, match=r"with \*\*\*"):
        channel.deliver({}, None)


def test_option_that_a_custom_plugin_refuses_is_reported_with_its_line(room, written):
    (fault,) = fault_texts(own(room, written, "bad = 1"))

    assert fault == "channels.toml:4: it.config.bad: is not good"


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        ("telegram", {"token": "SECRET"}),
        ("imap", {"host": "h", "user": "u", "password": "SECRET", "smtp": {"host": "h", "password": "SECRET"}}),
        ("http_json", {"url": "http://SECRET", "headers": {"a": "SECRET"}, "deliver_headers": {"a": "SECRET"}}),
        ("webhook", {"url": "http://a", "secret": "SECRET", "headers": {"a": "SECRET"}}),
    ],
)
def test_options_that_may_be_secret_are_not_in_the_text_of_a_table(plugin, options):
    from chordage.orchestrator.gateways.channels import room_channels

    table = import_module(f"{room_channels.__package__}.{plugin}").TABLE
    assert "SECRET" not in repr(table.model_validate(options))


def test_of_two_broken_bindings_of_one_name_both_are_reported(written, room):
    written("[a]\nplugin = 'telegram'\nevery = 0\n[channels.a]\nplugin = 7\n")

    text = "\n".join(map(str, faults(room, {})))

    assert "channels.toml:3: a.every: must be a number of seconds" in text
    assert "channels.toml:5: channels.a.plugin: must be a text" in text
    assert "there are two bindings 'a'" in text
