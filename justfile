# Recipes for https://just.systems; each is one line you can as well type yourself.

# Show the recipes
default:
    @just --list

# Make the environment
setup:
    python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]'

# All that CI runs
check:
    CI=true .venv/bin/pytest -n 2 --ignore tests/live && CI=true .venv/bin/pytest -n 2 --dist loadfile tests/live

# The quick tests, on two cores
test *args:
    .venv/bin/pytest -n 2 --dist loadgroup tests/unit tests/store tests/flow {{args}}

# Put in order what can be, then lint, types, import contracts and layout
lint:
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .
    .venv/bin/pytest tests/architecture

# Real Redis, PostgreSQL and worker processes, which are killed
live *args:
    .venv/bin/pytest -n 2 --dist loadfile tests/live {{args}}

# Measure against the baselines
bench *args:
    .venv/bin/chordage bench {{args}}

# A room at work, in one minute
demo *args:
    .venv/bin/chordage demo {{args}}
