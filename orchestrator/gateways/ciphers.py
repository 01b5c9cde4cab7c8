"""Ciphers for stored contents: one of the team by its name, or the one that comes with Chordage, AES-256-GCM."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from functools import cache
from pathlib import Path

from chordage.orchestrator.core.contents import KEY_ID, Cipher, CipherContext
from chordage.orchestrator.core.errors import ConfigError, RoomError
from chordage.orchestrator.gateways.room import imports
from chordage.orchestrator.system import user_code

INCLUDED = "aes-gcm"
GROUP = "chordage.ciphers"  # of entry points
NONCE = 12  # bytes; random, so one key encrypts no more than some four thousand million values
_KEYS = (
    "give lines ID:KEY, the key with which to encrypt first, each KEY 32 bytes in base64: "
    '`echo "k1:$(head -c 32 /dev/urandom | base64)"`'
)


def cipher_from(name: str | None, keys: str | None, room: Path) -> Cipher | None:
    """Of the settings `cipher` and `cipher_keys`. None: contents are stored as they are. Raises ConfigError."""
    if name is None:
        if keys is not None:
            raise ConfigError(f"setting cipher_keys has keys, and no cipher uses them: set CHORDAGE_CIPHER={INCLUDED}")
        return None
    return _made(name, keys, room)


@cache
def _made(name: str, keys: str | None, room: Path) -> Cipher:
    """Once in a process: what statements become is kept for each cipher."""
    if name == INCLUDED:
        return AesGcm(keys_from(keys))
    imports.make_importable(room)
    try:
        cipher: Cipher = user_code.load_function(name, GROUP, what="cipher")()
    except RoomError as error:
        raise ConfigError(f"setting cipher ({name}): {error}") from error
    except user_code.failures() as error:
        why = f"{type(error).__name__}: {error}{user_code.line_of(error)}"
        raise ConfigError(f"setting cipher ({name}): the function raised {why}") from error
    if not all(hasattr(cipher, part) for part in ("key_id", "encrypt", "decrypt")):
        raise ConfigError(
            f"setting cipher ({name}): the function must return an object with key_id, encrypt and decrypt, not "
            f"{type(cipher).__name__} (docs/how-to/encryption.md)"
        )
    if not isinstance(cipher.key_id, str) or not KEY_ID.fullmatch(cipher.key_id):
        raise ConfigError(
            f"setting cipher ({name}): its key_id is {cipher.key_id!r}; give up to 64 letters, digits, `.`, `_` and `-`"
        )
    return cipher


def keys_from(text: str | None) -> dict[str, bytes]:
    """By id, in their order. No message has a part of a key. Raises ConfigError."""
    keys: dict[str, bytes] = {}
    for number, line in enumerate(filter(None, re.split(r"[\s,]+", text or "")), 1):
        key_id, _, encoded = line.partition(":")
        if not KEY_ID.fullmatch(key_id) or key_id in keys:
            raise ConfigError(f"setting cipher_keys: key {number} has no id of its own; {_KEYS}")
        try:
            keys[key_id] = b64decode(encoded, validate=True)
        except ValueError as error:
            raise ConfigError(f"setting cipher_keys: key {key_id!r} is not base64; {_KEYS}") from error
        if len(keys[key_id]) != 32:
            raise ConfigError(f"setting cipher_keys: key {key_id!r} has {len(keys[key_id])} bytes; {_KEYS}")
    if not keys:
        raise ConfigError(f"setting cipher_keys (CHORDAGE_CIPHER_KEYS): the cipher {INCLUDED} needs a key; {_KEYS}")
    return keys


class AesGcm:
    """AES-256-GCM. The first key encrypts, and each of them decrypts what it has encrypted."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the cipher {INCLUDED} needs the extra `encryption`: `pip install 'chordage[encryption]'` (in a clone "
                "'.[encryption]')"
            ) from error
        self.key_id = next(iter(keys))
        self._keys = {key_id: AESGCM(key) for key_id, key in keys.items()}

    def encrypt(self, plaintext: bytes, context: CipherContext) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + self._keys[self.key_id].encrypt(nonce, plaintext, bytes(context))

    def decrypt(self, ciphertext: bytes, context: CipherContext, key_id: str) -> bytes:
        return self._keys[key_id].decrypt(ciphertext[:NONCE], ciphertext[NONCE:], bytes(context))
