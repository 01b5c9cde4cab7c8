"""Encryption of stored contents: what a cipher has to do, and how what it made is written down.

A value is bound to where it is stored: the cipher authenticates the table, the column and the owner of the row, which
is its thread where it has one. So a value that is copied to another thread cannot be read there.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Protocol

from chordage.orchestrator.core.errors import WrongKey

MARK = "chordage-enc1:"  # how an encrypted value begins; the id of its key follows, a colon, and base64
_WRITTEN = re.compile(rf"{MARK}([A-Za-z0-9._-]{{1,64}}):([A-Za-z0-9+/]+={{0,2}})")
KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class CipherContext:
    """Where a value is stored. `owner`: the id of the thread, or of what else the row belongs to."""

    table: str
    column: str
    owner: str

    def __bytes__(self) -> bytes:
        """To be authenticated with the value: other places have other bytes."""
        return json.dumps([self.table, self.column, self.owner]).encode()

    def __str__(self) -> str:
        return f"{self.table}.{self.column} of {self.owner!r}"


class Cipher(Protocol):
    """Encrypts contents before they are stored, and decrypts them as they are read, in any thread of any process."""

    @property
    def key_id(self) -> str:
        """Of the key with which it encrypts: up to 64 letters, digits, `.`, `_` and `-`. Stored with each value."""
        ...

    def encrypt(self, plaintext: bytes, context: CipherContext) -> bytes:
        """With the key `key_id`. `bytes(context)` is to be authenticated."""
        ...

    def decrypt(self, ciphertext: bytes, context: CipherContext, key_id: str) -> bytes:
        """Raises whatever it likes if it has no such key, or if the value was changed or stored elsewhere."""
        ...


def encrypt(cipher: Cipher, text: str, context: CipherContext) -> str:
    ciphertext = cipher.encrypt(text.encode(errors="surrogatepass"), context)
    return f"{MARK}{cipher.key_id}:{b64encode(ciphertext).decode()}"


def encrypt_json(cipher: Cipher | None, text: str, context: CipherContext) -> str:
    """JSON as a JSON string of what the cipher makes of it. Without a cipher: as it is."""
    return text if cipher is None else f'"{encrypt(cipher, text, context)}"'


def decrypt_json(cipher: Cipher | None, text: str, context: CipherContext) -> str:
    """What `encrypt_json` was given. Raises WrongKey."""
    return decrypt(cipher, text[1:-1], context) if cipher is not None and text.startswith(f'"{MARK}') else text


def key_of(text: str) -> str | None:
    """The id of the key with which a value was encrypted. None: it is plain."""
    written = _WRITTEN.fullmatch(text) if text.startswith(MARK) else None
    return written[1] if written else None


def decrypt(cipher: Cipher, text: str, context: CipherContext) -> str:
    """What is plain is returned as it is: it was stored before there was a cipher. Raises WrongKey."""
    written = _WRITTEN.fullmatch(text) if text.startswith(MARK) else None
    if written is None:
        return text
    try:
        plaintext = cipher.decrypt(b64decode(written[2]), context, written[1])
        return plaintext.decode(errors="surrogatepass")
    except Exception as error:  # of the team's own code
        raise WrongKey(
            f"{context} cannot be decrypted with key {written[1]!r} ({type(error).__name__}): give that key to the "
            "cipher of CHORDAGE_CIPHER again; if it has it, the row was changed outside of chordage. Nothing was lost"
        ) from error
