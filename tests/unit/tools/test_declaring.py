"""What @tool accepts, and what it refuses while the module is imported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from chordage import Context, Effect, RoomError, tool

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypeCheckers


def test_a_decorated_function_can_still_be_called():
    @tool
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8


def test_bare_declaration_has_the_safe_defaults(bench):
    @tool
    def search(query: str) -> str:
        """Search the archive."""
        return query

    spec = bench.spec(search)
    assert (spec.name, spec.description) == ("search", "Search the archive.")
    assert (spec.effect, spec.timeout, spec.retries) == (Effect.UNSAFE, 60.0, 0)


def test_options_reach_the_spec(bench):
    @tool(name="look-up", effect="pure", timeout=5, retries=2, retry_on=OSError, result_limit=10)
    def search(query: str) -> str:
        return query

    spec = bench.spec(search)
    assert (spec.name, spec.effect, spec.timeout) == ("look-up", Effect.PURE, 5.0)
    assert (spec.retries, spec.result_limit) == (2, 10)


def refused(*parts, **options):
    """Declares a function with these options; the refusal names the function, its file, and the parts."""

    def search(query: str) -> str:
        return query

    with pytest.raises(RoomError) as refusal:
        tool(**options)(search)
    said = str(refusal.value)
    assert "tool search (" in said
    assert "test_declaring.py:" in said
    for part in parts:
        assert part in said


def test_a_typo_in_the_effect_lists_the_effects():
    refused("effect must be one of pure, idempotent, reconcilable, unsafe; got 'prue'", effect="prue")


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "5", True, None])
def test_a_timeout_that_is_no_time_is_refused(timeout):
    refused("timeout must be a number of seconds, more than 0", timeout=timeout)


@pytest.mark.parametrize("retries", [-1, 1.5, "2", True])
def test_retries_must_be_a_count(retries):
    refused("retries must be a whole number, 0 or more", retries=retries)


@pytest.mark.parametrize("retry_on", ["OSError", (), (OSError, "x"), KeyboardInterrupt])
def test_retry_on_must_name_exceptions(retry_on):
    refused("retry_on must be an exception class", retries=1, retry_on=retry_on)


def test_retry_on_without_retries_is_refused_because_it_does_nothing():
    refused("retry_on does nothing without retries; add retries=2", retry_on=OSError)


@pytest.mark.parametrize("limit", [0, -5, 2.5, True])
def test_a_result_limit_must_leave_something_to_see(limit):
    refused("result_limit must be a whole number of characters, 1 or more", result_limit=limit)


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "größe", 5])
def test_a_name_that_providers_do_not_take_is_refused(name):
    refused("name must be 1 to 64 letters, digits, _ or -", name=name)


def test_a_reconcilable_tool_needs_its_hook():
    refused("effect reconcilable needs reconcile=<function>", effect="reconcilable")


def test_hook_that_would_never_run_is_refused():
    refused("reconcile is asked only for effect='reconcilable'; got effect='pure'", effect="pure", reconcile=print)


def test_hook_may_only_take_parameters_of_the_tool():
    def find(order: str, customer: str) -> str | None:
        return None

    with pytest.raises(RoomError, match="reconcile asks for customer, which the tool does not have"):

        @tool(effect="reconcilable", reconcile=find)
        def buy(order: str) -> str:
            return order


def test_an_option_that_does_not_exist_is_refused_at_once():
    with pytest.raises(TypeError, match="unexpected keyword argument 'retry'; it takes name, effect, timeout, retries"):
        tool(retry=2)


def test_a_missing_annotation_is_refused():
    with pytest.raises(RoomError, match=r"tool search .*parameter query has no annotation; write its type"):

        @tool
        def search(query):
            return query


def test_parameters_that_have_no_name_are_refused():
    for declaration in ("*words: str", "**words: str", "words: str, /"):
        names: dict = {}
        exec(f"def search({declaration}): ...", names)
        with pytest.raises(RoomError, match="cannot be given by name"):
            tool(names["search"])


def test_a_method_is_refused_with_the_way_out():
    with pytest.raises(RoomError, match="a plain function, not a method; move it out of its class"):

        class Shop:
            @tool
            def buy(self, item: str) -> str:
                return item


def test_a_generator_is_refused():
    with pytest.raises(RoomError, match="cannot yield; return a list"):

        @tool
        def pages(url: str):
            yield url


def test_something_that_is_no_function_is_refused():
    with pytest.raises(RoomError, match="not a plain function; write `@tool` directly above `def`"):
        tool(functools.partial(print, "x"))


def test_a_type_that_json_lacks_is_refused_by_parameter():
    with pytest.raises(RoomError, match="parameter source cannot be described in JSON Schema"):

        @tool
        def read(count: int, source: functools.partial) -> str:
            return ""


def test_a_parameter_that_takes_a_function_is_refused():
    with pytest.raises(RoomError, match="parameter then cannot be described in JSON Schema"):

        @tool
        def read(then: Callable[[], int]) -> int:
            return then()


def test_an_annotation_that_is_no_type_is_refused():
    names: dict = {}
    exec("def search(query: 'not a type!'): ...", names)
    with pytest.raises(RoomError, match="an annotation is not a type"):
        tool(names["search"])


def test_a_name_for_type_checkers_only_is_refused_at_first_use(bench):
    @tool
    def pay(amount: OnlyForTypeCheckers) -> str:
        return str(amount)

    with pytest.raises(RoomError, match=r"tool pay .*OnlyForTypeCheckers.*not under TYPE_CHECKING"):
        bench.spec(pay)


def test_a_return_annotation_may_exist_for_type_checkers_only(bench):
    @tool
    def pay(amount: int) -> OnlyForTypeCheckers:
        return amount

    assert bench.call(pay, amount=3).content == "3"


def test_the_context_is_found_under_any_name_and_inside_a_union(bench):
    @tool
    def whoami(here: Context, also: Context | None = None) -> list[str]:
        return [here.run_id, also.call_id]

    assert bench.spec(whoami).schema["properties"] == {}
    assert bench.call(whoami).content == '["run-1","call-1"]'
