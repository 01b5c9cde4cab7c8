"""The invariants of the product, under the name that tests know."""

from chordage.testing.invariants import check_all, check_always, check_places_are_handed_on

__all__ = ["check_all", "check_always", "check_places_are_handed_on"]
