"""The names of spans are fixed: other processes, and traces that were exported years ago, have the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core import otlp
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.spans import (
    SpanPart,
    link_of_caller,
    span_id,
    span_of_run,
    trace_id,
    valid_traceparent,
)

RUN = "01980f3c-5d2a-7b1c-8a4e-9f0d12345678"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{PARENT}-01"


def test_trace_has_the_id_of_its_root_run() -> None:
    assert trace_id(RUN) == "01980f3c5d2a7b1c8a4e9f0d12345678"
    assert trace_id("no UUID") == "0168cd2bf4777eb973dde0e996ab6f83"


def test_ids_of_spans_never_change() -> None:
    assert span_of_run(RUN) == "a8db52c9ba5e7270"
    assert span_id(SpanPart.MODEL, RUN, step=1) == "2c1a65860a0adfa2"
    assert span_id(SpanPart.CALL, RUN, step=2, call="c", generation=1) == "572f4ee9ce9ad4cd"
    assert span_id(SpanPart.LOST, RUN, step=2, call="c", generation=1, attempt=1) == "a883fc4017bbcf78"


@given(st.lists(st.tuples(st.sampled_from(SpanPart), st.integers(0, 9), st.sampled_from(["", "a", "b"]),
                          st.integers(0, 3), st.integers(0, 3)), unique=True, max_size=50))  # fmt: skip
def test_what_differs_in_anything_has_another_id(subjects: list[tuple[SpanPart, int, str, int, int]]) -> None:
    ids = {
        span_id(part, RUN, step=step, call=call, generation=generation, attempt=attempt)
        for part, step, call, generation, attempt in subjects
    }
    assert len(ids) == len(subjects)


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (GOOD, GOOD),
        (f" {GOOD} ", GOOD),
        (f"cc-{TRACE}-{PARENT}-01-what-comes-later", f"cc-{TRACE}-{PARENT}-01"),
        (f"cc-{TRACE}-{PARENT}-01", f"cc-{TRACE}-{PARENT}-01"),
        (None, None),
        ("", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"{GOOD}-more", None),
        (f"{GOOD}.", None),
        (f"cc-{TRACE}-{PARENT}-01.more", None),
        (GOOD.upper(), None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE[1:]}-{PARENT}-01", None),
        (f"{GOOD},{GOOD}", None),
    ],
)
def test_traceparent_is_kept_as_w3c_has_it_or_ignored(header: str | None, kept: str | None) -> None:
    assert valid_traceparent(header) == kept


@given(st.text())
def test_no_header_is_an_error(header: str) -> None:
    kept = valid_traceparent(header)
    assert kept is None or len(kept) == 55


def test_caller_is_a_link_with_its_flags() -> None:
    assert link_of_caller(GOOD) == (TRACE, PARENT, "caller", 1)


@pytest.mark.parametrize(
    ("given_url", "posted_to"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://otel.example.org/api/public/otel/v1/traces", "https://otel.example.org/api/public/otel/v1/traces"),
    ],
)
def test_address_of_a_collector_without_a_path_has_the_usual_one(given_url: str, posted_to: str) -> None:
    assert otlp.endpoint(given_url) == posted_to


def test_headers_are_read_as_opentelemetry_has_them() -> None:
    read = otlp.headers_from("Authorization=Basic%20dTpw, x-tenant = a%2Cb ,")
    assert read == {"authorization": "Basic dTpw", "x-tenant": "a,b"}
    assert otlp.headers_from("") == {}


@pytest.mark.parametrize("text", ["Authorization", "a b=c", "a=%0d%0ab", "=x", "a=%C3%A9"])
def test_headers_that_cannot_be_sent_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS is not name=value"):
        otlp.headers_from(text)
