"""Providers as the room names them, their keys, and the way to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordage.orchestrator.core.errors import ConfigError, RoomError
from chordage.orchestrator.gateways.http_client import HttpClient
from chordage.orchestrator.gateways.models.providers import BUILTIN, ProviderConfig, TableProviders
from chordage.orchestrator.gateways.models.remote import RemoteModel
from chordage.orchestrator.gateways.proxies import proxy_of

FILE = Path("agent.toml")


def provided(name, table):
    return TableProviders(lambda: {name: table}, FILE)[name]


def test_a_room_adds_a_provider():
    table = {"base_url": "http://localhost:11434/v1", "silence": 300, "headers": {"x-team": "a"}}
    provider = provided("ollama", table)
    assert (provider.wire, provider.api_key_env, provider.silence) == ("openai", None, 300)
    assert provider.key({}) is None


def test_a_room_changes_a_builtin_provider_in_part():
    provider = provided("anthropic", {"base_url": "https://gateway.example"})
    assert provider.wire == "anthropic"
    assert provider.api_key_env == "ANTHROPIC_API_KEY"


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        ("acme", {}, r"agent\.toml: \[models\.acme\]: base_url must be an address"),
        ("acme", {"base_url": "http://x", "wire": "soap"}, "wire 'soap' is unknown: choose one of openai, anthropic"),
        ("scripted", {"base_url": "http://x"}, "the name is taken"),
        ("a:b", {"base_url": "http://x"}, "holds a colon"),
    ],
)
def test_a_wrong_table_is_refused_with_file_and_key(name, table, words):
    with pytest.raises(RoomError, match=words):
        provided(name, table)


@pytest.mark.parametrize(
    ("key", "words"), [("", "needs an API key"), (" ", "needs an"), ("sk-\u2026", "cannot be sent")]
)
def test_a_key_that_cannot_be_used_names_its_variable(key, words):
    provider = ProviderConfig(name="acme", wire="openai", base_url="http://x", api_key_env="ACME_KEY")
    with pytest.raises(ConfigError, match=f"{words}.*set ACME_KEY"):
        provider.key({"ACME_KEY": key})


def test_blanks_around_a_key_are_dropped():
    provider = ProviderConfig(name="acme", wire="openai", base_url="http://x", api_key_env="ACME_KEY")
    assert provider.key({"ACME_KEY": " sk\n"}) == "sk"


def test_a_header_may_come_from_the_environment():
    headers = {"x-team": "a", "api-key_env": "ACME_KEY"}
    provider = ProviderConfig(name="acme", wire="openai", base_url="http://x", headers=headers)

    assert provider.plain_headers == {"x-team": "a"}
    assert provider.secret_headers({"ACME_KEY": " sk\n"}) == {"api-key": "sk"}
    with pytest.raises(ConfigError, match="'acme' needs the header api-key_env: set ACME_KEY in the environment"):
        provider.secret_headers({})


def test_provider_made_in_code_with_an_unknown_wire_is_refused():
    provider = ProviderConfig(name="acme", wire="soap", base_url="http://x")
    with pytest.raises(ConfigError, match="'acme' has wire 'soap'"):
        RemoteModel(provider, "m", http=HttpClient(), environ={})


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://api.openai.com/v1", "http://small:2"),
        ("http://api.openai.com/v1", None),
        ("https://example.org", None),
        ("https://a.Example.org", None),
        ("https://notexample.org", "http://small:2"),
        ("https://star.example", None),
        ("https://port.example:8443", None),
        ("https://port.example", "http://small:2"),
        ("https://10.0.0.1", None),
        ("https://10.0.0.12", "http://small:2"),
        ("https://[fd00::1]:8443", None),
        ("https://[::1]", None),
        ("https://localhost", None),
        ("https://127.0.0.1:1", None),
    ],
)
def test_proxies_of_the_environment_are_used_and_exceptions_kept(url, proxy):
    hosts = ".example.org, 10.0.0.1, *.star.example, port.example:8443, fd00::1"
    environ = {"HTTPS_PROXY": "http://big:1", "https_proxy": "small:2", "NO_PROXY": hosts}
    assert proxy_of(environ, url) == proxy


def test_one_proxy_may_be_for_both_schemes():
    assert proxy_of({"ALL_PROXY": "http://p:1"}, "http://a") == proxy_of({"all_proxy": "p:1"}, "https://a")


@pytest.mark.parametrize("environ", [{}, {"NO_PROXY": "a"}, {"ALL_PROXY": "http://p:1", "NO_PROXY": "b, *"}])
def test_no_proxy_is_used_where_none_is_named_or_all_are_excepted(environ):
    assert proxy_of(environ, "https://a") is None


def test_a_proxy_of_an_unknown_kind_is_refused_without_its_password():
    with pytest.raises(
        ConfigError, match=r"the proxy host:1 for https addresses cannot be used: set HTTPS_PROXY"
    ) as error:
        proxy_of({"HTTPS_PROXY": "socks5://user:secret@host:1"}, "https://a")
    assert "secret" not in str(error.value)


def test_key_may_be_in_a_file_that_a_variable_names(tmp_path):
    (tmp_path / "key").write_text("sk-file\n")
    environ = {"OPENAI_API_KEY_FILE": str(tmp_path / "key")}
    assert BUILTIN["openai"].key(environ) == "sk-file"
    assert BUILTIN["openai"].key({**environ, "OPENAI_API_KEY": "sk-set"}) == "sk-set"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "OPENAI_API_KEY_FILE names {file}, which cannot be read: No such file or directory"),
        (b"\xffsecret", "OPENAI_API_KEY_FILE names {file}, which cannot be read: it is not UTF-8"),
        (b" \n", "and {file} of OPENAI_API_KEY_FILE is empty"),
        (b"secret\x07key", "holds characters that cannot be sent: set {file} anew"),
    ],
)
def test_file_without_a_key_is_named_and_its_content_is_not(tmp_path, content, error):
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        BUILTIN["openai"].key({"OPENAI_API_KEY_FILE": str(file)})
    assert error.format(file=file) in str(raised.value)
    assert "model provider 'openai'" in str(raised.value)
    assert "secret" not in str(raised.value)
