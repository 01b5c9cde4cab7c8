"""How a turn is completed: pure functions from a view of the run to the next move, by name."""
