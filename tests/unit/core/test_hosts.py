"""By which names a server may be called, and from which pages."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.hosts import Hosts, is_loopback

HERE = ["localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "::1"]
BEYOND = ["0.0.0.0", "::", "10.0.0.5", "fe80::1", "agents.example.org", "localhost.example.org", ""]


@pytest.mark.parametrize("host", HERE)
def test_only_this_machine_reaches_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", BEYOND)
def test_other_machines_may_reach_all_else(host):
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", ":80", "a b", "a/b", "user@localhost", "localhost:", "localhost:x", "[::1", "a%b"]
)
def test_what_is_no_host_is_refused(host):
    assert not Hosts(named=frozenset({"a"})).takes(host)


def test_the_address_it_listens_on_is_a_name_of_it_unless_it_is_any():
    assert Hosts(address="10.0.0.5").takes("10.0.0.5:8630")
    assert Hosts(address="fe80::1").takes("[fe80::1]")
    assert not Hosts(address="0.0.0.0").takes("0.0.0.0:8630")
    assert not Hosts(address="::").takes("[::]:8630")


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://localhost:8630", "localhost:8630", True),
        ("http://LOCALHOST:8630", "localhost:8630", True),
        ("http://localhost", "localhost:80", True),
        ("https://agents.example.org", "agents.example.org", True),
        ("https://agents.example.org", "agents.example.org:443", True),
        ("http://[::1]:8630", "[::1]:8630", True),
        ("http://localhost:3000", "localhost:8630", False),
        ("http://127.0.0.1:8630", "localhost:8630", False),
        ("http://10.0.0.5:3000", "10.0.0.5:8630", False),
        ("ftp://localhost", "localhost", False),
        ("null", "localhost", False),
        ("http://[", "localhost", False),
        ("http://localhost:99999", "localhost", False),
        ("", "localhost", False),
    ],
)
def test_a_page_is_ours_by_name_and_port(origin, host, own):
    assert Hosts(address="10.0.0.5").takes_page(origin, host) is own


def test_a_page_of_a_host_that_is_named_is_ours_whatever_a_proxy_makes_of_the_host():
    hosts = Hosts(named=frozenset({"agents.example.org"}))

    assert hosts.takes_page("https://agents.example.org", "127.0.0.1:8630")
    assert not hosts.takes_page("https://www.example.org", "127.0.0.1:8630")
