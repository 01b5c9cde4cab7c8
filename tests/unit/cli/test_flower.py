"""Flower is not opened to a network without a password, by whichever way its options are given."""

from __future__ import annotations

from errno import EADDRINUSE, EADDRNOTAVAIL

import pytest
from click.testing import CliRunner
from flower.command import options

from chordage.orchestrator.core.errors import ConfigError
from chordage.workers.cli import main
from chordage.workers.cli.processes import refuse_open_flower, serve_flower
from support.plain_room import forget_settings


@pytest.fixture(autouse=True)
def as_if_new(monkeypatch, tmp_path):
    """Tornado keeps options for the whole process."""
    monkeypatch.chdir(tmp_path)
    for name in ("basic_auth", "auth", "address", "unix_socket"):
        option = options._options[name.replace("_", "-")]
        monkeypatch.setattr(option, "_value", option.default if not option.multiple else [])
    for name in ("FLOWER_BASIC_AUTH", "FLOWER_AUTH"):
        monkeypatch.delenv(name, raising=False)


OPEN = ["0.0.0.0", "::", "10.1.2.3", "flower.example", ""]
CLOSED = ["127.0.0.1", "127.0.0.9", "::1", "localhost", "LOCALHOST"]


@pytest.mark.parametrize("address", OPEN)
def test_an_address_that_others_reach_is_refused_without_a_password(address) -> None:
    with pytest.raises(ConfigError, match=r"Flower would be open to everyone.*give --basic-auth=name:password"):
        refuse_open_flower(address, ())


@pytest.mark.parametrize("address", CLOSED)
def test_on_this_machine_alone_it_is_not(address) -> None:
    refuse_open_flower(address, ())


@pytest.mark.parametrize(
    "given", [("--basic-auth=a:b",), ("--basic_auth=a:b",), ("--auth=.*@example.com",), ("--unix-socket=/tmp/f",)]
)
def test_with_a_guard_it_is_not(given) -> None:
    refuse_open_flower("0.0.0.0", given)


def test_the_guard_may_be_a_variable_or_a_file(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FLOWER_BASIC_AUTH", "a:b")
    refuse_open_flower("0.0.0.0", ())

    monkeypatch.delenv("FLOWER_BASIC_AUTH")
    options._options["basic-auth"]._value = []
    (tmp_path / "flowerconfig.py").write_text("basic_auth = ['a:b']\n")
    refuse_open_flower("0.0.0.0", ())


def test_error_is_one_line_and_nothing_starts(monkeypatch) -> None:
    forget_settings(monkeypatch)
    monkeypatch.setenv("CHORDAGE_REDIS_URL", "redis://127.0.0.1:1/0")
    done = CliRunner().invoke(main, ["flower", "--address", "0.0.0.0"])

    assert done.exit_code == 1
    assert done.stderr.startswith("chordage: Flower would be open to everyone who reaches 0.0.0.0")
    assert len(done.stderr.splitlines()) == 1


class FaultyApp:
    def __init__(self, fault: OSError) -> None:
        self.fault = fault

    def start(self, _options: list[str]) -> None:
        raise self.fault


def test_port_in_use_is_reported_with_the_remedy() -> None:
    app = FaultyApp(OSError(EADDRINUSE, "Address already in use"))

    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:5555 is in use: choose another port with --port"):
        serve_flower(app, (), "127.0.0.1:5555")


def test_another_fault_of_the_address_is_reported_unchanged() -> None:
    app = FaultyApp(OSError(EADDRNOTAVAIL, "Cannot assign requested address"))

    with pytest.raises(OSError, match="Cannot assign"):
        serve_flower(app, (), "192.0.2.1:5555")
