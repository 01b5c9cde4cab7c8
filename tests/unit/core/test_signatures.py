"""Seals: only the secret, the body and the time that were signed are right, in every form."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core import signatures
from chordage.orchestrator.core.signatures import Encoding, Form, Seal, SignatureCheck, sealed, verify

SECRET, OTHER, NOW = b"a secret", b"another secret", 1_800_000_000
FORMS = {
    "standard": Seal(form=Form.STANDARD, secrets=(SECRET,)),
    "github": Seal(form=Form.GITHUB, secrets=(SECRET,), id_header="x-github-delivery"),
    "bare": Seal(form=Form.HMAC, secrets=(SECRET,)),
    "slack": Seal(
        form=Form.HMAC, secrets=(SECRET,), header="x-slack-signature", prefix="v0=",
        timestamp_header="x-slack-request-timestamp", signed="v0:{timestamp}:{body}",
    ),
    "with id": Seal(
        form=Form.HMAC, secrets=(SECRET,), encoding=Encoding.BASE64, id_header="x-id", timestamp_header="x-time",
        signed="{id}.{timestamp}.{body}",
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("seal", FORMS.values(), ids=FORMS)
BYTES = st.text(st.characters(max_codepoint=255), max_size=80)  # what a header may hold
NAMES = BYTES | st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature", "x-signature", "x-time"])
STAMPED = pytest.mark.parametrize("name", ["standard", "slack", "with id"])


def of(seal, **changed):
    return replace(seal, **changed)


@EACH
@given(body=st.binary(max_size=200), other=st.binary(max_size=200))
def test_a_body_is_right_with_its_own_seal_alone(seal, body, other):
    headers = sealed(seal, "id1", NOW, body)

    assert verify(seal, headers, body, NOW) is SignatureCheck.RIGHT
    assert verify(seal, headers, other, NOW) is (SignatureCheck.RIGHT if other == body else SignatureCheck.WRONG)


@EACH
@given(body=st.binary(max_size=50), data=st.data())
def test_no_header_can_be_changed(seal, body, data):
    """Whatever it contains, and whatever it is changed to. An id that is not signed may be."""
    headers = sealed(seal, "id1", NOW, body)
    signed = [name for name in headers if name != seal.id_header or "{id}" in seal.signed]
    name = data.draw(st.sampled_from(signed))
    text = BYTES.filter(lambda one: one not in headers[name])
    changed = data.draw(text | st.just(f"{headers[name]}x") | st.just("0" + headers[name][1:-1]) | st.just("0x1"))

    assert verify(seal, {**headers, name: changed}, body, NOW) is not SignatureCheck.RIGHT


@given(body=st.binary(max_size=50), headers=st.dictionaries(NAMES, BYTES, max_size=6))
@EACH
def test_headers_of_a_stranger_are_never_right_and_never_an_error(seal, body, headers):
    needed = dict.fromkeys(sealed(seal, "i", NOW, b""), "x")

    assert verify(seal, headers, body, NOW) is not SignatureCheck.RIGHT
    assert verify(seal, {**needed, **headers}, body, NOW) is SignatureCheck.WRONG or set(needed) & set(headers)


@EACH
def test_without_its_headers_a_delivery_is_unsigned(seal):
    headers = sealed(seal, "id1", NOW, b"body")
    signature = signatures._signature_header(seal)

    assert verify(seal, {}, b"body", NOW) is SignatureCheck.UNSIGNED
    assert verify(seal, {**headers, signature: ""}, b"body", NOW) is SignatureCheck.UNSIGNED


@EACH
def test_each_of_several_secrets_is_right_and_no_other(seal):
    rotated = of(seal, secrets=(OTHER, SECRET))

    for secret, said in (
        (SECRET, SignatureCheck.RIGHT),
        (OTHER, SignatureCheck.RIGHT),
        (b"third", SignatureCheck.WRONG),
    ):
        headers = sealed(of(seal, secrets=(secret,)), "id1", NOW, b"body")
        assert verify(rotated, headers, b"body", NOW) is said


@STAMPED
@pytest.mark.parametrize(("off", "said"), [(300, "right"), (-300, "right"), (301, "stale"), (-301, "stale")])
def test_the_time_that_was_signed_may_be_off_by_the_tolerance_to_either_side(name, off, said):
    headers = sealed(FORMS[name], "id1", NOW + off, b"body")

    assert verify(FORMS[name], headers, b"body", NOW) == said


@STAMPED
def test_an_old_delivery_with_a_new_time_is_wrong(name):
    headers = sealed(FORMS[name], "id1", NOW - 10_000, b"body")
    stamp = next(header for header, value in headers.items() if value == str(NOW - 10_000))

    assert verify(FORMS[name], {**headers, stamp: str(NOW)}, b"body", NOW) is SignatureCheck.WRONG


def test_the_known_example_of_standard_webhooks_is_right():
    """From its specification: secret, id, time, body and signature."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }

    seal = Seal(form=Form.STANDARD, secrets=(secret,))

    assert verify(seal, headers, b'{"test": 2432232314}', 1614265330) is SignatureCheck.RIGHT


def test_the_known_example_of_github_is_right():
    """From its documentation."""
    headers = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}

    seal = Seal(form=Form.GITHUB, secrets=(b"It's a Secret to Everybody",))

    assert verify(seal, headers, b"Hello, World!", NOW) is SignatureCheck.RIGHT


def test_secrets_are_not_shown():
    assert "secret" not in repr(FORMS["github"]).replace("secrets", "")


def test_without_an_id_the_signed_part_identifies_a_copy():
    seal, headers = FORMS["bare"], {}

    assert signatures.proof(seal, headers, b"a") == signatures.proof(seal, {"x-other": "1"}, b"a")
    assert signatures.proof(seal, headers, b"a") != signatures.proof(seal, headers, b"b")
