"""`chordage encrypt`, as people and programs see it; and the processes that do not start without a key."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.store import schema_version
from chordage.tasks.schema import request_from
from chordage.workers.bootstrap import runtime_from

KEY, OTHER = (b64encode(bytes([number] * 32)).decode() for number in (1, 2))
FIRST = {"cipher": "aes-gcm", "cipher_keys": f"k1:{KEY}"}
BOTH = {"cipher": "aes-gcm", "cipher_keys": f"k2:{OTHER},k1:{KEY}"}
NEXT = {"cipher": "aes-gcm", "cipher_keys": f"k2:{OTHER}"}


@pytest.fixture
def turn(room):
    return submit(room)


def submit(room, **settings):
    runtime = runtime_from(load(room=room, **settings), with_redis=False)
    schema_version.upgrade(runtime.store)
    turn_id = stages.admit(runtime, request_from({"text": "plain words"}, source="test", space=None))[0].turn_id
    runtime.store.close()
    return turn_id


def test_what_is_stored_is_encrypted_then_with_another_key_and_the_old_one_retires(chordage, turn, room):
    counted = json.loads(chordage("encrypt", "--dry-run", "--json", **FIRST).stdout)
    assert (counted["changed"], set(counted["found"])) == (0, {"not encrypted"})
    assert b"plain words" in (room / "execution.db").read_bytes()

    done = chordage("encrypt", **FIRST)
    assert "values were encrypted with key k1" in done.stdout
    assert "turns: " in done.stderr
    assert b"plain words" not in b"".join(path.read_bytes() for path in room.glob("execution.db*"))
    assert "plain words" in chordage("show", turn, **FIRST).stdout

    early = chordage("encrypt", "--retire", **BOTH)
    assert early.exit_code == 1
    assert "other keys are not retired, because this pass found values of k1: run this once more" in early.stderr
    submit(room, **BOTH)  # the note of its arrival is not encrypted
    again = json.loads(chordage("encrypt", "--retire", "--json", **BOTH).stdout)
    assert again["retired"] == ["k1"]
    assert again["found"]["not encrypted"] == 1
    assert "because this was a dry run" in chordage("encrypt", "--retire", "--dry-run", **BOTH).stderr
    assert "plain words" in chordage("show", turn, **NEXT).stdout


def test_process_without_the_key_says_which_one_it_needs(chordage, turn):
    chordage("encrypt", **FIRST)

    for without in ({}, NEXT):
        refused = chordage("show", turn, **without)
        assert refused.exit_code != 0
        assert "key 'k1'" in refused.stderr
        assert KEY not in refused.stderr
    worker = chordage("worker", redis_url="redis://127.0.0.1:1/0")
    assert "encrypted with key 'k1', and this process has no cipher: set CHORDAGE_CIPHER" in worker.stderr


def test_encrypting_without_a_cipher_is_an_error(chordage, turn):
    done = chordage("encrypt")
    assert done.exit_code != 0
    assert "there is no cipher: set CHORDAGE_CIPHER" in done.stderr


def test_check_names_a_cipher_that_cannot_be_used(chordage, room):
    done = chordage("check", cipher="vault:make")
    assert "setting cipher (vault:make): there is no module vault" in done.stdout + done.stderr
