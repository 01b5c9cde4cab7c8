"""A cipher for tests: quick, with several keys, and it notices a value that was changed or moved."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from typing import Any

import pytest

from chordage.orchestrator.core.contents import CipherContext
from chordage.orchestrator.store.database import Store


@dataclass(frozen=True)
class TestCipher:
    __test__ = False
    key_id: str = "k1"
    known: frozenset[str] = frozenset({"k1"})

    def encrypt(self, plaintext: bytes, context: CipherContext) -> bytes:
        nonce = os.urandom(12)
        body = _mixed(self.key_id, nonce, plaintext)
        return nonce + _tag(self.key_id, nonce + body, context) + body

    def decrypt(self, ciphertext: bytes, context: CipherContext, key_id: str) -> bytes:
        if key_id not in self.known:
            raise KeyError(key_id)
        nonce, tag, body = ciphertext[:12], ciphertext[12:44], ciphertext[44:]
        if not hmac.compare_digest(tag, _tag(key_id, nonce + body, context)):
            raise ValueError("the value was changed or moved")
        return _mixed(key_id, nonce, body)


def _mixed(key: str, nonce: bytes, text: bytes) -> bytes:
    stream = hashlib.shake_256(key.encode() + nonce).digest(len(text))
    return bytes(a ^ b for a, b in zip(text, stream, strict=True))


def _tag(key: str, text: bytes, context: CipherContext) -> bytes:
    return hmac.digest(key.encode(), text + bytes(context), "sha256")


def encrypt_all(patch: pytest.MonkeyPatch) -> None:
    """From now on every store that is not given a cipher has one."""
    init = Store.__init__

    def make(self: Store, url: str, **options: Any) -> None:
        init(self, url, **{"cipher": TestCipher(), **options})

    patch.setattr(Store, "__init__", make)
