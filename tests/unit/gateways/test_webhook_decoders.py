"""Decoders of one's own: what they are handed, what they may say, and what becomes of those that fail."""

from __future__ import annotations

import sys
import types

import pytest

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.signatures import Form, Seal
from chordage.orchestrator.core.webhooks import DecodedMessage, WebhookBinding
from chordage.orchestrator.gateways.webhooks import bindings, decoders


@pytest.fixture
def decoded(monkeypatch):
    """What comes of a delivery when this function decodes it."""

    def decode(function):
        module = types.ModuleType("own_decoders")
        module.decode = function
        monkeypatch.setitem(sys.modules, "own_decoders", module)
        binding = WebhookBinding(
            name="own", path="/hooks/own", method="POST", seal=Seal(form=Form.NONE), plugin="own_decoders:decode",
            options={"token": "t"},
        )  # fmt: skip
        return decoders.decode(binding, {"x-kind": "question"}, b"the body")

    return decode


def test_a_decoder_is_handed_the_delivery_and_the_config_of_its_binding(decoded):
    def decode(delivery):
        meta = {"kind": delivery.headers["x-kind"], "token": delivery.config["token"], "path": delivery.path}
        return {"text": delivery.body.decode(), "thread": delivery.binding, "meta": meta}

    meta = {"kind": "question", "token": "t", "path": "/hooks/own"}
    assert decoded(decode) == DecodedMessage(text="the body", thread="own", meta=meta)


def test_none_is_no_message(decoded):
    assert decoded(lambda delivery: None) is None


def test_a_value_error_refuses_the_delivery_with_its_text(decoded):
    def decode(delivery):
        raise ValueError("the ticket has no number")

    with pytest.raises(InvalidMessage, match="the ticket has no number"):
        decoded(decode)


WRONG = {
    "a text": "text",
    "no text": {"thread": "t"},
    "who speaks": {"text": "t", "sender": "owner"},
    "a number": {"text": 1},
    "thread": {"text": "t", "thread": 1},
    "meta": {"text": "t", "meta": [1]},
}


@pytest.mark.parametrize("said", WRONG.values(), ids=WRONG)
def test_what_is_no_message_is_the_fault_of_the_decoder(decoded, said):
    with pytest.raises(decoders.DecoderFailed, match="own_decoders:decode"):
        decoded(lambda delivery: said)


def test_any_other_error_is_the_fault_of_the_decoder(decoded):
    with pytest.raises(decoders.DecoderFailed, match="raised ZeroDivisionError"):
        decoded(lambda delivery: 1 / 0)


def test_one_that_does_not_come_back_is_left_behind(decoded, monkeypatch):
    import threading

    gate = threading.Event()
    monkeypatch.setattr(decoders, "SECONDS", 0.05)
    with pytest.raises(decoders.DecoderFailed, match="did not answer"):
        decoded(lambda delivery: gate.wait(120))
    gate.set()


OWN = '[hooks.a]\npath = "/hooks/a"\nsignature = "none"\nplugin = "json:loads"\n[hooks.a.config]\n'


def test_keys_that_end_in_env_are_looked_up_for_it(tmp_path):
    (tmp_path / "hooks.toml").write_text(f'{OWN}token_env = "TOKEN"\nlimit = 3\nsender = "peer"\n')

    (binding,) = bindings.read(tmp_path, {"TOKEN": "s3cret"}).bindings

    assert (binding.options, binding.sender) == ({"token": "s3cret", "limit": 3}, "peer")
    assert "s3cret" not in repr(binding)


def test_a_variable_of_its_config_that_is_not_set_is_a_fault(tmp_path):
    (tmp_path / "hooks.toml").write_text(f'{OWN}token_env = "TOKEN"\n')

    (fault,) = bindings.faults(tmp_path, {})

    assert str(fault).startswith("hooks.toml:6: hooks.a.config.token_env: the environment variable TOKEN is not set")
