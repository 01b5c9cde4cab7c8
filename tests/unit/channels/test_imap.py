"""A mailbox on a real IMAP server, and answers to an SMTP server that records what it gets."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
import time
from contextlib import contextmanager

import pytest

from chordage.orchestrator.core.channels import Outgoing, Unreadable
from chordage.orchestrator.core.errors import Unavailable, Undeliverable
from chordage.orchestrator.gateways.channels.ids import ChannelWriters
from chordage.orchestrator.gateways.channels.mail import MailRules, read, stripped
from support.imap_server import PASSWORD, a_mail, imap_server
from support.raw_server import raw_server


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with imap_server(tmp_path_factory.mktemp("imap")) as server:
        yield server


@pytest.fixture
def server(running, request):
    """With a folder of this test."""
    running.folder = f"box{abs(hash(request.node.name))}"
    running.make(running.folder)
    return running


@pytest.fixture
def mailbox(server, bound):
    def make(**more):
        return bound("imap", **server.config(**{"folder": server.folder, "read_old": True, **more}))

    return make


def drop(server, *mails):
    server.drop(mails, server.folder)


def test_mail_is_a_message_of_its_writer_and_the_next_look_begins_behind_it(server, mailbox):
    drop(server, a_mail(1), a_mail(2))
    box = mailbox()

    polled = box.poll(None)
    drop(server, a_mail(3))
    later = box.poll(polled.cursor)

    assert [(message.text, message.thread) for message in polled.messages] == [
        ("mail 1", "friend1@example.org"),
        ("mail 2", "friend2@example.org"),
    ]
    assert polled.messages[0].meta["subject"] == "Subject 1"
    assert [message.text for message in later.messages] == ["mail 3"]
    assert box.poll(later.cursor).messages == ()


def test_old_mail_is_left_alone_unless_requested(server, mailbox):
    drop(server, a_mail(1))
    box = mailbox(read_old=False)

    first = box.poll(None)
    drop(server, a_mail(2))

    assert first.messages == ()
    assert [message.text for message in box.poll(first.cursor).messages] == ["mail 2"]


def test_owner_peers_and_others_are_distinguished_and_strangers_ignored(server, mailbox):
    for number, writer in enumerate(("boss@example.org", "Pal <PAL@example.com>", "friend@example.org", "evil@x.net")):
        drop(server, a_mail(number, From=writer))

    polled = mailbox(owner_addresses=["boss@example.org"], peer_addresses="pal@example.com").poll(None)

    assert [message.sender.value for message in polled.messages] == ["owner", "peer", "guest"]
    assert polled.passed_over == 1


def test_mail_of_programs_and_our_own_is_passed_over(server, mailbox):
    drop(
        server,
        a_mail(1, Auto_Submitted="auto-replied"),
        a_mail(2, Precedence="bulk"),
        a_mail(3, X_Autoreply="yes"),
        a_mail(4, From="agent@example.org"),
        a_mail(5, Auto_Submitted="no"),
    )

    assert [message.text for message in mailbox().poll(None).messages] == ["mail 5"]
    assert len(mailbox(accept_automatic=True).poll(None).messages) == 4


def test_same_mail_twice_has_one_key_and_keeps_it_when_the_server_renumbers(server, mailbox):
    drop(server, a_mail(1), a_mail(1), a_mail(2))
    box = mailbox()
    before = box.poll(None)

    server.number_anew(server.folder)
    after = box.poll(before.cursor)

    keys = [message.key for message in before.messages]
    assert keys[0] == keys[1] != keys[2]
    assert [message.key for message in after.messages] == keys
    assert before.cursor.split(":")[0] != after.cursor.split(":")[0]
    assert box.poll(after.cursor).messages == ()


def test_a_mail_without_an_id_has_the_key_of_its_place(server, mailbox):
    drop(server, a_mail(1, "ok", Message_ID=""), a_mail(1, "ok", Message_ID=""))

    keys = {message.key for message in mailbox().poll(None).messages}

    assert len(keys) == 2


def test_a_mail_that_is_too_large_is_not_fetched_and_put_on_record(server, mailbox):
    drop(server, a_mail(1, "x" * 5000), a_mail(2))

    first, second = mailbox(max_bytes=3000).poll(None).messages

    assert isinstance(first, Unreadable)
    assert "the limit is 3000 (max_bytes)" in first.why
    assert first.excerpt == "Subject 1"
    assert second.text == "mail 2"


@contextmanager
def with_false_sizes(server, size):
    """The same server, but for what it says of sizes. What it hands out is counted."""
    handed_out = []

    def talk(connection, _over):
        with socket.create_connection(("127.0.0.1", server.port)) as beyond:
            asking = threading.Thread(target=pass_on, args=(connection, beyond))
            asking.start()
            while said := beyond.recv(1_000_000):
                handed_out.append(len(said))
                connection.sendall(re.sub(rb"RFC822.SIZE \d+", size, said))
        asking.join()

    with raw_server(talk) as relay:
        yield {"port": relay.port}, handed_out


def pass_on(connection, beyond):
    with contextlib.suppress(OSError):
        while asked := connection.recv(65_536):
            beyond.sendall(asked)


def test_of_a_mail_that_is_too_large_the_headers_are_fetched_within_bounds(server, mailbox):
    head, body = a_mail(1).split(b"\n\n", 1)
    drop(server, head + b"\nX-Padding: " + b"x" * 300_000 + b"\n\n" + body)

    with with_false_sizes(server, rb"RFC822.SIZE 5000000") as (at, handed_out):
        (found,) = mailbox(**at, max_bytes=3000).poll(None).messages

    assert isinstance(found, Unreadable)
    assert found.excerpt == "Subject 1"
    assert sum(handed_out) < 100_000


@pytest.mark.parametrize(("size", "why"), [
    (b"FLAGS ()", "the server does not say how large the mail is, the limit is 3000"),
    (b"RFC822.SIZE 7", "the mail has more bytes than the 7 that the server says, the limit is 3000"),
])  # fmt: skip
def test_a_mail_whose_size_is_not_known_is_not_fetched_whole_and_put_on_record(server, mailbox, size, why):
    drop(server, a_mail(1, "x" * 50_000))

    with with_false_sizes(server, size) as (at, handed_out):
        (found,) = mailbox(**at, max_bytes=3000).poll(None).messages

    assert isinstance(found, Unreadable)
    assert why in found.why
    assert sum(handed_out) < 10_000


def test_conversation_is_a_thread_where_configured(server, mailbox):
    drop(
        server,
        a_mail(1),
        a_mail(4, References="<mail1@example.org> <ours@example.org>", In_Reply_To="<ours@example.org>"),
        a_mail(7, In_Reply_To="<mail1@example.org>"),
        a_mail(10),
    )

    threads = [message.thread for message in mailbox(thread_by_references=True).poll(None).messages]

    assert threads[0] == threads[1] == threads[2] != threads[3]
    assert all(thread.startswith("friend1@example.org:") for thread in threads)


def test_html_is_read_where_there_is_no_plain_text():
    html = "<html><head><title>T</title><style>p{}</style></head><body><p>Hello <b>you</b></p>one<br>two &amp; three"

    assert stripped(html) == "Hello you\none\ntwo & three"


@pytest.mark.parametrize(("html", "words"), [
    ("<head><title>T<body>shown", "shown"), ("<SCRIPT>if (a<b) x()</Script>shown", "shown"), ("a < b <", "a < b <"),
    ("<a title='x>y' href=\"z>\">shown</a>", "shown"), ("<!-- no > no -->shown<!-- x", "shown<!-- x"),
    ("<!DOCTYPE html><?xml?>shown", "shown"), ("<![<![x", "<![<![x"), ('<a title="x>shown', "shown"),
    ("one<br/>two<BR />three", "one\ntwo\nthree"), ("<style>x", ""), ("<style>x>", ""),
])  # fmt: skip
def test_text_of_html_is_separated_from_its_markup(html, words):
    assert stripped(html) == words


@pytest.mark.parametrize("piece", [
    "<a", "<a ", "<a>", "<!--", "<!-- >", "<!", "</a", "<?", "&#", "<script>", "<a x='", "<a x='>", "<![",
    """<a "><a '>""", "<style></stile>", "<br>", "<",
])  # fmt: skip
def test_html_that_is_made_to_cost_its_square_is_read_at_once(piece):
    began = time.process_time()

    assert len(stripped(piece * (200_000 // len(piece)) + ">")) <= 200_001
    assert time.process_time() - began < 20, "its square would take minutes"


def test_html_beyond_all_measure_is_put_on_record():
    writers = ChannelWriters(owners=frozenset({"ann@x.example"}))
    rules = MailRules(writers=writers, own="", automatic=False, by_references=True)
    head = b"From: ann@x.example\r\nContent-Type: text/html\r\n\r\n"

    found = read(head + b"<b>" * 700_000, rules, "7.1", "7.2")

    assert isinstance(found, Unreadable)
    assert "its HTML has 2100000 characters, the limit is 2000000" in found.why


def test_mail_in_html_broken_mail_and_unknown_letters_are_read_as_far_as_they_can_be(server, mailbox):
    head = b"From: a@example.org\r\nSubject: =?x-none?Q?what?=\r\nMessage-ID: <1@x>\r\n"
    drop(
        server,
        head + b"Content-Type: text/html; charset=utf-8\r\n\r\n<p>in <i>html</i></p>",
        head + b"Content-Type: text/plain; charset=klingon\r\n\r\nqapla",
        head + b"Content-Type: multipart/mixed; boundary=x\r\n\r\nno parts at all",
        b"From: a@example.org\r\nReferences: <<<>>> <\xff\r\nDate: never\r\n\r\nbroken headers\x00",
    )

    texts = [message.text for message in mailbox().poll(None).messages]

    assert texts[:2] == ["in html", "qapla"]
    assert texts[3] == "broken headers\ufffd"


@pytest.mark.parametrize(
    "header",
    [
        b"From: " + b"(" * 20_000,
        b"From: " + b"ann@x.example, " * 20_000,
        b"From: " + b'"' * 60_000,
        b"From: ann@x.example\r\nContent-Type: " + b"(" * 5000,
        b"From: ann@x.example\r\nContent-Disposition: " + b"(" * 5000,
        b"From: ann@x.example" + b"\r\nContent-Type: message/rfc822\r\n" * 3000,
    ],
    ids=["nested", "many", "quotes", "type", "disposition", "mail in mail"],
)
def test_mail_made_to_break_the_reader_delays_no_other(header):
    writers = ChannelWriters(owners=frozenset({"ann@x.example"}))
    rules = MailRules(writers=writers, own="", automatic=False, by_references=True)
    began = time.monotonic()

    found = read(header + b"\r\nMessage-ID: " + b"(" * 5000 + b"\r\n\r\nhello", rules, "7.1", "7.2")

    assert found is None or found.cursor == "7.2"
    assert time.monotonic() - began < 30, "it is read in its own length"


def test_mail_is_marked_only_where_configured_and_only_when_it_was_stored(server, mailbox):
    drop(server, a_mail(1), a_mail(2))
    plain = mailbox()
    plain.poll(plain.poll(None).cursor)
    assert unseen(server) == 2

    marking = mailbox(mark_seen=True)
    cursor = marking.poll(None).cursor
    assert unseen(server) == 2, "they are not stored yet"
    drop(server, a_mail(3))
    marking.poll(cursor)
    assert unseen(server) == 1


def test_mail_is_moved_where_configured_once_it_was_stored(server, mailbox):
    drop(server, a_mail(1), a_mail(2))
    done = f"{server.folder}done"
    server.make(done)
    box = mailbox(move_to=done)

    cursor = box.poll(None).cursor
    assert (server.count(server.folder), server.count(done)) == (2, 0)
    box.poll(cursor)

    assert (server.count(server.folder), server.count(done)) == (0, 2)


def unseen(server):
    with server.connected() as connection:
        connection.select(server.folder, readonly=True)
        return len(connection.search(None, "UNSEEN")[1][0].split())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"password": "not-that-one"}, "AUTHENTICATIONFAILED"),
        ({"folder": "Nowhere"}, "no folder 'Nowhere'"),
        ({"port": 9}, "ConnectionRefusedError"),
        ({"tls": "implicit"}, "SSLError"),
        ({"tls": "starttls"}, "STARTTLS|TLS"),
    ],
)
def test_fault_of_a_mailbox_is_reported_without_its_password(mailbox, wrong, words):
    with pytest.raises(Unavailable, match=words) as raised:
        mailbox(**wrong).poll(None)

    assert PASSWORD not in str(raised.value)
    assert "not-that-one" not in str(raised.value)


class Smtp(socketserver.StreamRequestHandler):
    """As much of SMTP as it takes. `refuses` is a command and the line it is answered with."""

    refuses: tuple[str, str] = ("", "")
    got: list[str] = []

    def handle(self) -> None:
        self.say("220 here")
        while line := self.rfile.readline().decode().strip():
            word = line[:4].upper()
            if word == self.refuses[0]:
                self.say(self.refuses[1])
            elif word == "DATA":
                self.say("354 go on")
                self.got.append("".join(iter(lambda: self.rfile.readline().decode().replace("\r\n", "\n"), ".\n")))
                self.say("250 taken")
            else:
                self.say("221 bye" if word == "QUIT" else "250 ok")

    def say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@pytest.fixture
def post(mailbox, monkeypatch):
    monkeypatch.setattr(Smtp, "got", [])
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        port = server.server_address[1]
        yield mailbox(smtp={"host": "127.0.0.1", "port": port, "tls": "none", "from": "agent@example.org"})
        server.shutdown()
        thread.join()


ANSWER = Outgoing(key="delivery-1", thread_id="t", turn_id="u", text="Dear you,\n\nyes.", body={})


def test_an_answer_belongs_to_the_conversation_and_has_the_same_id_each_time(server, post):
    drop(server, a_mail(1, References="<root@example.org>"))
    (message,) = post.poll(None).messages

    post.deliver(message.address, ANSWER)
    post.deliver(message.address, ANSWER)

    first, second = Smtp.got
    assert "Subject: Re: Subject 1\n" in first
    assert "In-Reply-To: <mail1@example.org>\n" in first
    assert "References: <root@example.org> <mail1@example.org>\n" in first
    assert "Auto-Submitted: auto-replied\n" in first
    assert "Dear you,\n\nyes.\n" in first
    ids = {line for mail in (first, second) for line in mail.splitlines() if line.startswith("Message-ID:")}
    assert len(ids) == 1
    assert ids.pop().endswith("@example.org>")


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (("RCPT", "550 no such user"), Undeliverable),
        (("RCPT", "450 later"), Unavailable),
        (("MAIL", "554 not you"), Undeliverable),
        (("DATA", "451 later"), Unavailable),
        (("EHLO", ""), Unavailable),
    ],
)
def test_error_of_a_mail_server_shows_whether_another_try_helps(post, monkeypatch, refusal, kind):
    monkeypatch.setattr(Smtp, "refuses", refusal)

    with pytest.raises(kind):
        post.deliver({"to": "friend@example.org"}, ANSWER)


def test_without_a_table_smtp_nothing_can_be_sent(mailbox):
    with pytest.raises(Undeliverable, match=r"give \[channels.it.config.smtp\]"):
        mailbox().deliver({"to": "friend@example.org"}, ANSWER)


@pytest.mark.parametrize("address", [{}, {"to": "a@b\nBcc: all@example.org"}, {"to": "a@b", "subject": "x\ny"}])
def test_an_address_that_would_write_headers_is_undeliverable(post, address):
    with pytest.raises(Undeliverable, match="no mail can be addressed so"):
        post.deliver(address, ANSWER)
