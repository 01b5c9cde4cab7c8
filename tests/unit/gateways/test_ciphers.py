"""The ciphers that a setting names: the included one, and those of teams; and what is wrong with a setting."""

from __future__ import annotations

import sys
from base64 import b64encode
from pathlib import Path

import pytest

from chordage.orchestrator.core.contents import CipherContext, decrypt, encrypt, key_of
from chordage.orchestrator.core.errors import ConfigError, WrongKey
from chordage.orchestrator.gateways.ciphers import AesGcm, cipher_from, keys_from

KEY, OTHER = (b64encode(bytes([number] * 32)).decode() for number in (1, 2))
HERE = CipherContext("turns", "text", "t1")


def test_included_cipher_encrypts_with_the_first_key_and_reads_all() -> None:
    old = AesGcm(keys_from(f"k1:{KEY}"))
    new = AesGcm(keys_from(f"k2:{OTHER}\nk1:{KEY}\n"))
    stored = encrypt(old, "words \ud800", HERE)

    assert key_of(stored) == "k1"
    assert "words" not in stored
    assert decrypt(new, stored, HERE) == "words \ud800"
    assert key_of(encrypt(new, "words", HERE)) == "k2"
    assert encrypt(old, "words", HERE) != encrypt(old, "words", HERE)


@pytest.mark.parametrize(
    "elsewhere",
    [CipherContext("turns", "text", "t2"), CipherContext("turns", "meta", "t1"), CipherContext("calls", "text", "t1")],
)
def test_value_is_read_only_where_it_was_stored(elsewhere: CipherContext) -> None:
    cipher = AesGcm(keys_from(f"k1:{KEY}"))
    with pytest.raises(WrongKey, match="cannot be decrypted with key 'k1'"):
        decrypt(cipher, encrypt(cipher, "words", HERE), elsewhere)


def test_places_that_read_alike_have_different_bytes() -> None:
    assert bytes(CipherContext("a", 'b", "c', "d")) != bytes(CipherContext("a", "b", 'c", "d'))


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (None, "the cipher aes-gcm needs a key; give lines ID:KEY"),
        (f"k1:{KEY},k1:{OTHER}", "key 2 has no id of its own"),
        (f"{KEY}", "key 1 has no id of its own"),
        ("k1:c2VjcmV0", "key 'k1' has 6 bytes"),
        ("k1:~secret~", "key 'k1' is not base64"),
    ],
)
def test_keys_that_are_no_keys_are_named_and_not_shown(keys: str | None, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        keys_from(keys)
    assert "secret" not in str(raised.value)
    assert KEY not in str(raised.value)


def test_keys_without_a_cipher_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="setting cipher_keys has keys, and no cipher uses them"):
        cipher_from(None, f"k1:{KEY}", Path())
    assert cipher_from(None, None, Path()) is None


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigError, match="the cipher aes-gcm needs the extra `encryption`"):
        AesGcm(keys_from(f"k1:{KEY}"))


TEAM = """
class Cipher:
    key_id = "team-1"
    def encrypt(self, plaintext, context): return plaintext[::-1]
    def decrypt(self, ciphertext, context, key_id): return ciphertext[::-1]
def make(): return Cipher()
def broken(): raise OSError("no vault")
def nothing(): return None
def unnamed():
    cipher = Cipher()
    cipher.key_id = "k 1"
    return cipher
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "team_vault", raising=False)
    (tmp_path / "team_vault.py").write_text(TEAM)
    return tmp_path


def test_cipher_of_a_team_is_a_function_of_its_room(room: Path) -> None:
    cipher = cipher_from("team_vault:make", None, room)
    assert cipher is not None
    assert decrypt(cipher, encrypt(cipher, "words", HERE), HERE) == "words"
    assert cipher_from("team_vault:make", None, room) is cipher


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("team_vault", r"setting cipher \(team_vault\): there is no cipher 'team_vault'; give an import path"),
        ("team_vault:none", "module team_vault has no 'none'"),
        ("team_vault:broken", "the function raised OSError: no vault"),
        ("team_vault:nothing", "must return an object with key_id, encrypt and decrypt, not NoneType"),
        ("team_vault:unnamed", "its key_id is 'k 1'; give up to 64 letters"),
    ],
)
def test_cipher_that_cannot_be_used_is_an_error_with_a_name(room: Path, name: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        cipher_from(name, None, room)
