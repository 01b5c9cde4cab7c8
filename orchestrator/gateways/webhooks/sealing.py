"""How the deliveries of a binding are signed, as its table says. Closed unless it says otherwise, in so many words."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping

from chordage.orchestrator.core import signatures
from chordage.orchestrator.core.signatures import Encoding, Form, Seal
from chordage.orchestrator.gateways.room_table import SECONDS, TEXT, Kind, Table

ANYTHING = Kind(words="anything", fits=lambda _value: True)
NAMES = Kind(
    words='the name of an environment variable, or a list of them, like ["NEW_SECRET", "OLD_SECRET"]',
    fits=lambda value: TEXT.fits(value) or (isinstance(value, list) and bool(value) and all(map(TEXT.fits, value))),
)
ONLY_HMAC = ("signature_header", "signature_prefix", "signature_encoding", "timestamp_header", "signed")
STANDARD_PREFIX = "whsec_"
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


def read(table: Table, environ: Mapping[str, str]) -> Seal:
    form = _form(table)
    if form is not Form.HMAC:
        _refuse_what_is_for_hmac(table, form)
    seal = Seal(
        form=form or Form.NONE,
        secrets=tuple(_secrets(table, form, environ)),
        tolerance=float(table.take("tolerance", SECONDS, Seal(form=Form.NONE).tolerance)),
        id_header=_id_header(table, form),
        replay_window=float(table.take("replay_window", SECONDS, Seal(form=Form.NONE).replay_window)),
        header=_header(table, "signature_header") or "x-signature",
        prefix=table.take("signature_prefix", TEXT, ""),
        encoding=Encoding(table.choose("signature_encoding", Encoding, "hex")),
        timestamp_header=_header(table, "timestamp_header"),
        signed=_signed(table),
    )
    if form is Form.HMAC:
        _check_signed(table, seal)
    if "replay_window" in table.values and (
        not signatures.leaves_id_unsigned(seal) or seal.timestamp_header is not None
    ):
        why = "is for deliveries whose signature covers neither their id nor a time; leave it out"
        table.complain("replay_window", why)
    return seal


def resolved(table: Table, key: str, variable: str, environ: Mapping[str, str]) -> str | None:
    """What the variable holds; what is wrong with it is noted, without what it holds."""
    value = environ.get(variable)
    if not value:
        table.complain(key, f"the environment variable {variable} is not set; set it where the HTTP server starts")
    elif value != value.strip():
        table.complain(key, f"the environment variable {variable} begins or ends with white space; take it away")
    else:
        return value
    return None


def _form(table: Table) -> Form | None:
    """None where it is not said, or wrong."""
    if "signature" not in table.values:
        known = ", ".join(f'"{form}"' for form in Form if form is not Form.NONE)
        table.complain("signature", f'is missing; write one of {known}, or "none" to let anybody deliver')
    return table.choose("signature", Form, None, required=True)


def _refuse_what_is_for_hmac(table: Table, form: Form | None) -> None:
    for key in ONLY_HMAC:
        if form is not None and key in table.values:
            table.complain(key, f'is for signature = "hmac"; leave it out with "{form}"')


def _secrets(table: Table, form: Form | None, environ: Mapping[str, str]) -> Iterator[bytes]:
    given: str | list[str] = table.take("secret_env", NAMES, [], required=form not in {None, Form.NONE})
    if form is Form.NONE and "secret_env" in table.values:
        table.complain("secret_env", 'nothing is signed with signature = "none"; say how it is signed, or leave it out')
        return
    for variable in [given] if isinstance(given, str) else given:
        value = resolved(table, "secret_env", variable, environ)
        secret = _standard(table, variable, value) if value and form is Form.STANDARD else (value or "").encode()
        if secret:
            yield secret


def _standard(table: Table, variable: str, value: str) -> bytes:
    try:
        return base64.b64decode(value.removeprefix(STANDARD_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        why = f"the environment variable {variable} holds no Standard Webhooks secret: {STANDARD_PREFIX} and base64"
        table.complain("secret_env", why)
        return b""


def _id_header(table: Table, form: Form | None) -> str | None:
    given = _header(table, "idempotency_header")
    match form:
        case Form.STANDARD:
            if given not in {None, signatures.STANDARD_ID}:
                table.complain("idempotency_header", f"it is {signatures.STANDARD_ID} in this form; leave it out")
            return None
        case Form.GITHUB:
            return given or signatures.GITHUB_ID
        case _:
            return given


def _header(table: Table, key: str) -> str | None:
    name: str | None = table.take(key, TEXT, None)
    if name is not None and not _HEADER.fullmatch(name):
        table.complain(key, f"must be the name of an HTTP header; got {name!r}")
    return name.lower() if name else None


def _signed(table: Table) -> str:
    usual = "{timestamp}.{body}" if "timestamp_header" in table.values else "{body}"
    return table.take("signed", TEXT, usual)


def _check_signed(table: Table, seal: Seal) -> None:
    """What is not signed can be changed on the way."""
    signed = seal.signed
    if signed.count("{body}") != 1 or "}{" in signed:
        why = 'must hold {body} once, with something between it and others, like "{timestamp}.{body}"'
        table.complain("signed", f"{why}; got {signed!r}")
    if (seal.timestamp_header is not None) != ("{timestamp}" in signed):
        table.complain("signed", "needs {timestamp} where there is a timestamp_header, and only there")
    if "{id}" in signed and seal.id_header is None:
        table.complain("signed", "needs an idempotency_header for {id}")
