"""hooks.toml: what a binding may say, and that one that is broken stops no other."""

from __future__ import annotations

import pytest

from chordage.orchestrator.gateways.webhooks import bindings as hooks_file
from chordage.orchestrator.gateways.webhooks.bindings import Closed, WebhookBindings, WrongMethod

ENV = {"S": "secret", "W": "whsec_c2VjcmV0", "SPACE": " secret\n", "EMPTY": ""}
HEAD = '[hooks.a]\npath = "/hooks/a"\nsignature = "github"\nsecret_env = "S"\n'


def hmac(more):
    return f'[hooks.a]\npath = "/hooks/a"\nsignature = "hmac"\nsecret_env = "S"\n{more}'


WINDOW = "replay_window = 60\n"
BROKEN = {
    "window of signed ids": (HEAD.replace("github", "standard") + WINDOW, 5, "replay_window", "neither their id"),
    "no window": (HEAD + "replay_window = 0", 5, "replay_window", "must be"),
    "no path": ('[hooks.a]\nsignature = "none"', 1, "path", "is missing"),
    "path of the API": ('[hooks.a]\nsignature = "none"\npath = "/turns"', 3, "path", "begin with /hooks/"),
    "nothing behind": ('[hooks.a]\nsignature = "none"\npath = "/hooks/"', 3, "path", "nothing between"),
    "dots": ('[hooks.a]\nsignature = "none"\npath = "/hooks/../turns"', 3, "path", "no . or .."),
    "query": ('[hooks.a]\nsignature = "none"\npath = "/hooks/a?b"', 3, "path", "without space"),
    "blank method": (HEAD + 'method = " "', 5, "method", "not blank"),
    "method": (HEAD + 'method = "POST GET"', 5, "method", "such as POST"),
    "no signature": ('[hooks.a]\npath = "/hooks/a"', 1, "signature", 'or "none" to accept every sender'),
    "unknown signature": ('[hooks.a]\npath = "/hooks/a"\nsignature = "md5"', 3, "signature", "standard, github"),
    "no secret": ('[hooks.a]\npath = "/hooks/a"\nsignature = "github"', 1, "secret_env", "is missing"),
    "secret that is not used": (HEAD.replace("github", "none"), 4, "secret_env", "nothing is signed"),
    "variable not set": (HEAD.replace('"S"', '"NOPE"'), 4, "secret_env", "variable NOPE is not set"),
    "one of two not set": (HEAD.replace('"S"', '["S", "NOPE"]'), 4, "secret_env", "variable NOPE is not set"),
    "empty variable": (HEAD.replace('"S"', '"EMPTY"'), 4, "secret_env", "variable EMPTY is not set"),
    "white space": (HEAD.replace('"S"', '"SPACE"'), 4, "secret_env", "white space"),
    "no secrets": (HEAD.replace('"S"', "[]"), 4, "secret_env", "a list of them"),
    "no base64": (HEAD.replace("github", "standard"), 4, "secret_env", "no Standard Webhooks secret"),
    "tolerance": (HEAD + "tolerance = 0", 5, "tolerance", "more than 0"),
    "max_bytes": (HEAD + "max_bytes = 0", 5, "max_bytes", "1 or more"),
    "typo": (HEAD + 'agnet = "ada"', 5, "agnet", "did you mean agent?"),
    "for hmac": (HEAD + 'signature_header = "X"', 5, "signature_header", 'is for signature = "hmac"'),
    "header": (hmac('signature_header = "X Y"'), 5, "signature_header", "name of an HTTP header"),
    "no body signed": (hmac('signed = "{timestamp}"'), 5, "signed", "{body} once"),
    "run together": (hmac('timestamp_header = "T"\nsigned = "{timestamp}{body}"'), 6, "signed", "between"),
    "time not signed": (hmac('timestamp_header = "T"\nsigned = "{body}"'), 6, "signed", "needs {timestamp}"),
    "id without header": (hmac('signed = "{id}.{body}"'), 5, "signed", "needs an idempotency_header"),
    "id of standard": (
        HEAD.replace("github", "standard").replace('"S"', '"W"') + 'idempotency_header = "X"',
        5, "idempotency_header", "leave it out",
    ),
    "origin": (HEAD + '[hooks.a.config]\norigin = "task"', 6, "config.origin", "invoke, chat"),
    "sender": (HEAD + '[hooks.a.config]\nsender = "self"', 6, "config.sender", "owner, peer, guest, service"),
    "two threads": (HEAD + '[hooks.a.config]\nthread = "t"\nthread_field = "t"', 7, "config.thread_field", "one of"),
    "thread": (HEAD + '[hooks.a.config]\nthread = "a\\nb"', 6, "config.thread", "visible"),
    "two texts": (HEAD + '[hooks.a.config]\ntext = "t"\ntext_field = "t"', 7, "config.text_field", "one of the two"),
    "brace": (HEAD + '[hooks.a.config]\ntext = "{a"', 6, "config.text", "there is a single brace"),
    "attribute": (HEAD + '[hooks.a.config]\ntext = "{a..b}"', 6, "config.text", "dotted path"),
    "dotted": (HEAD + '[hooks.a.config]\ntext_field = "a..b"', 6, "config.text_field", "dotted path"),
    "meta": (HEAD + '[hooks.a.config]\nmeta_fields = [".a"]', 6, "config.meta_fields", "dotted path"),
    "config typo": (HEAD + '[hooks.a.config]\ntext_feld = "a"', 6, "config.text_feld", "text_field?"),
    "no decoder": (HEAD + 'plugin = "nope"', 5, "plugin", "there is no hook decoder"),
    "no module": (HEAD + 'plugin = "not_there:f"', 5, "plugin", "there is no module not_there"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "key", "why"), BROKEN.values(), ids=BROKEN)
def test_fault_in_a_binding_is_reported_with_its_line_and_key(folder, text, line, key, why):
    folder.write("hooks.toml", text)

    found = hooks_file.read(folder.path, ENV)

    assert (found.bindings, found.fault, [one.name for one in found.broken]) == ((), None, ["a"])
    assert f"hooks.toml:{line}: hooks.a.{key}: " in str(found.broken[0].fault)
    assert why in str(found.broken[0].fault)
    assert "secret\n" not in str(found.broken[0].fault)


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", " ", "a b", "x" * 65, ".hidden", "ä", "a\\u0000"])
def test_a_name_that_is_no_file_name_is_a_fault(folder, name):
    folder.write("hooks.toml", HEAD.replace("hooks.a]", f'hooks."{name}"]'))

    found = hooks_file.read(folder.path, ENV)

    assert found.bindings == ()
    assert "its name must be" in str(found.broken[0].fault)


def test_a_broken_binding_stops_no_other_and_answers_503_itself(folder):
    folder.write(
        "hooks.toml", f'{HEAD}\n[hooks.b]\npath = "/hooks/b"\n\n[hooks]\nc = 1\n'.replace("[hooks]\nc = 1\n", "")
    )

    bindings = WebhookBindings(folder.path, ENV)

    assert bindings.find("/hooks/a", "POST").name == "a"
    assert bindings.find("/hooks/a", "GET") == WrongMethod(("POST",))
    assert bindings.find("/hooks/b", "POST") == bindings.find("/hooks/b", "GET") == Closed()
    assert bindings.find("/hooks/c", "POST") is None


def test_what_is_no_table_is_a_fault_of_its_own(folder):
    folder.write("hooks.toml", f"hooks.c = 1\n[other]\n{HEAD}")

    found = hooks_file.read(folder.path, ENV)

    assert [one.name for one in found.bindings] == ["a"]
    assert "hooks.toml:1: hooks.c: must be a table: [hooks.c]" in str(found.broken[0].fault)
    assert "hooks.toml:2: other: there is no such key" in str(found.fault)


def test_two_bindings_on_one_path_and_method_are_a_fault_of_the_second(folder):
    other = HEAD.replace("hooks.a]", "hooks.b]")
    folder.write("hooks.toml", f"{HEAD}{other}{other.replace('hooks.b]', 'hooks.c]')}method = 'put'\n")

    found = hooks_file.read(folder.path, ENV)

    assert [(one.name, one.method) for one in found.bindings] == [("a", "POST"), ("c", "PUT")]
    assert [str(one.fault) for one in found.broken] == [
        "hooks.toml:6: hooks.b.path: POST /hooks/a is taken by [hooks.a]; change one"
    ]


@pytest.mark.parametrize("content", [b"[hooks", b'[hooks.a]\npath = "\xff"'])
def test_a_file_that_cannot_be_read_closes_every_path(folder, content):
    (folder.path / "hooks.toml").write_bytes(content)

    bindings = WebhookBindings(folder.path, ENV)

    assert bindings.find("/hooks/a", "POST") == Closed()
    assert str(bindings.current.faults[0]).startswith("hooks.toml:")


def test_the_file_is_read_again_when_it_has_changed(folder):
    bindings = WebhookBindings(folder.path, ENV, refresh_seconds=0)
    assert bindings.find("/hooks/a", "POST") is None

    folder.write("hooks.toml", HEAD)
    bindings.refresh()
    assert bindings.find("/hooks/a", "POST").name == "a"
    same = bindings.current
    bindings.refresh()
    assert bindings.current is same

    (folder.path / "hooks.toml").unlink()
    bindings.refresh()
    assert bindings.find("/hooks/a", "POST") is None


def test_a_decoder_that_could_not_be_imported_is_tried_again_when_its_file_has_changed(folder):
    folder.write("hooks.toml", HEAD + 'plugin = "late_decoder:decode"')
    bindings = WebhookBindings(folder.path, ENV, refresh_seconds=0)
    assert bindings.find("/hooks/a", "POST") == Closed()

    folder.write("late_decoder.py", "def decode(delivery):\n    return None\n")
    bindings.refresh()

    assert bindings.find("/hooks/a", "POST").plugin == "late_decoder:decode"


def test_an_agent_that_is_not_there_is_found_by_the_check(folder):
    folder.agent('name = "ada"\nmodel = "m"\n')
    folder.write(
        "hooks.toml", HEAD + 'agent = "eve"\n' + HEAD.replace("a]", "b]").replace("/a", "/b") + 'agent = "ada"'
    )

    assert [str(fault) for fault in hooks_file.faults(folder.path, ENV)] == [
        "hooks.toml:5: hooks.a.agent: there is no agent 'eve'; there are: ada"
    ]


def test_a_room_without_hooks_has_no_fault(folder):
    assert hooks_file.faults(folder.path, ENV) == []
