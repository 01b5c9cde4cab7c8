"""Pages fetched for a model, against a server on this machine that is allowed by name."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from chordage.orchestrator.gateways.address_guard import AddressGuard, AddressRefused, checked_url
from chordage.orchestrator.gateways.tools.web import WebGetter

HERE = ("127.0.0.0/8",)


class Answers(http.server.BaseHTTPRequestHandler):
    pages: dict = {}

    def do_GET(self):
        self.pages[self.path.partition("?")[0]](self)

    def log_message(self, *words): ...


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address): ...  # the other side hung up, as it should


@contextmanager
def server(**pages):
    handler = type("Handler", (Answers,), {"pages": {f"/{name}": page for name, page in pages.items()}})
    with Quiet(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def page(body, kind="text/plain; charset=utf-8", status=200):
    def answer(request):
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def redirect(to):
    def answer(request):
        request.send_response(302)
        request.send_header("Location", to)
        request.end_headers()

    return answer


def getter(**options):
    return WebGetter(guard=AddressGuard(allow=HERE), **options)


def test_a_page_is_fetched_with_status_type_and_text():
    with server(a=page("größer".encode()), b=page("é".encode("latin-1"), "text/html; charset=latin-1", 404)) as base:
        good, bad = getter().get(f"{base}/a?q=ü b"), getter().get(f"{base}/b")
    assert (good.status, good.content_type, good.text, good.truncated) == (200, "text/plain", "größer", False)
    assert (bad.status, bad.content_type, bad.text) == (404, "text/html", "é")


def test_unknown_charset_is_read_as_utf8():
    with server(a=page("ü".encode(), "text/plain; charset=klingon")) as base:
        assert getter().get(f"{base}/a").text == "ü"


def test_page_over_the_size_limit_is_cut_and_marked():
    with server(a=page(b"x" * 5000)) as base:
        found = getter(size_limit=1000).get(f"{base}/a")
    assert (found.text, found.truncated) == ("x" * 1000, True)


def test_truncated_page_is_marked():
    def broken(request):
        request.send_response(200)
        request.send_header("Content-Length", "100")
        request.end_headers()
        request.wfile.write(b"half")

    with server(a=broken) as base:
        found = getter().get(f"{base}/a")
    assert (found.text, found.truncated) == ("half", True)


def test_what_is_not_text_is_refused():
    with (
        server(a=page(b"\x89PNG", "image/png")) as base,
        pytest.raises(AddressRefused, match="is image/png, and only text"),
    ):
        getter().get(f"{base}/a")


def test_redirects_are_followed_to_the_end():
    with server(a=redirect("/b"), b=redirect("c"), c=page(b"there")) as base:
        found = getter().get(f"{base}/a")
    assert (found.url, found.text) == (f"{base}/c", "there")


def test_redirects_in_a_circle_end():
    with server(a=redirect("/a")) as base, pytest.raises(AddressRefused, match="more than 5 redirects"):
        getter().get(f"{base}/a")


@pytest.mark.parametrize("trap", ["http://169.254.169.254/secrets", "http://[::1]/", "file:///etc/passwd"])
def test_a_redirect_to_where_one_may_not_go_is_refused(trap):
    with server(a=redirect(trap)) as base, pytest.raises(AddressRefused):
        getter().get(f"{base}/a")


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch):
    answers = ["127.0.0.1", "10.0.0.1"]
    asked, lookup = [], socket.getaddrinfo

    def rebinding(host, port, **options):
        return lookup(answers.pop(0) if host == "rebinding.test" else host, port, **options)

    def host(request):
        asked.append(request.headers["Host"])
        page(b"ok")(request)

    with server(a=host) as base:
        port = base.rpartition(":")[2]
        monkeypatch.setattr(socket, "getaddrinfo", rebinding)
        assert getter().get(f"http://rebinding.test:{port}/a").text == "ok"
        with pytest.raises(AddressRefused, match=r"rebinding.test is at 10.0.0.1, which is not a public address"):
            getter().get(f"http://rebinding.test:{port}/a")
    assert asked == [f"rebinding.test:{port}"]
    assert answers == []  # each name is looked up once


def test_one_bad_address_among_good_ones_is_enough_to_refuse():
    with pytest.raises(AddressRefused, match=r"192\.168\.0\.1"):
        AddressGuard().check("mixed.test", ["93.184.216.34", "192.168.0.1"])


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "fec0::2",
        "ff02::1",
        "::ffff:127.0.0.1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
    ],
)
def test_addresses_that_are_not_public_are_refused(address):
    with pytest.raises(AddressRefused, match="is not a public address"):
        AddressGuard().check("trap.test", [address])


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_public_addresses_are_fine(address):
    AddressGuard().check("good.test", [address])


def test_a_private_network_can_be_allowed_by_name():
    guard = AddressGuard(allow=["10.1.0.0/16"])
    guard.check("10.1.2.3", ["10.1.2.3"])
    with pytest.raises(AddressRefused):
        guard.check("10.2.0.1", ["10.2.0.1"])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.test/", "is not a web address"),
        ("example.test", "is not a web address"),
        ("http://", "is not a web address"),
        ("http://me:secret@example.test/", "user name or password"),
        ("http://example.test:99999/", "is not a URL"),
        ("http://[broken", "is not a URL"),
    ],
)
def test_what_is_no_web_address_is_refused(url, why):
    with pytest.raises(AddressRefused, match=why):
        checked_url(url)


def test_unknown_name_is_refused(monkeypatch):
    def unknown(*asked, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(AddressRefused, match=r"gone.test cannot be found: .*not known"):
        getter().get("http://gone.test/")


def test_a_name_without_address_is_refused(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *asked, **options: [])
    with pytest.raises(AddressRefused, match="empty.test has no address"):
        getter().get("http://empty.test/")


@pytest.mark.parametrize("url", ["http://0177.0.0.1/", "http://[::ffff:7f00:1]/", "http://[::1%25lo]/"])
def test_an_address_in_disguise_is_refused(url):
    with pytest.raises(AddressRefused):
        WebGetter().get(url)


def test_a_server_that_dribbles_is_cut_off():
    gone = threading.Event()

    def dribble(request):
        request.send_response(200)
        request.flush_headers()
        while not gone.is_set():
            request.wfile.write(b"X-More: 1\r\n")
            gone.wait(0.05)

    with server(a=dribble) as base:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="did not end in time"):
            getter(timeout=0.2).get(f"{base}/a")
        gone.set()
    assert time.monotonic() - began < 30, "what dribbles has no end of its own"


def test_a_page_is_dropped_when_its_call_is_cancelled():
    with server(a=page(b"x" * 100_000)) as base, pytest.raises(TimeoutError):
        getter().get(f"{base}/a", cancelled=lambda: True)


def test_something_that_is_not_http_is_a_connection_error():
    def nonsense(request):
        request.wfile.write(b"SSH-2.0-nothing\r\n")

    with server(a=nonsense) as base, pytest.raises(ConnectionError, match="did not answer in good HTTP"):
        getter().get(f"{base}/a")


def test_https_checks_the_certificate_for_the_name():
    with server(a=page(b"plain")) as base, pytest.raises(OSError, match="(?i)ssl|wrong version"):
        getter().get(base.replace("http:", "https:") + "/a")
