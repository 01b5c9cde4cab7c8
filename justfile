# Recipes for https://just.systems. Each is one line that you can also type.

# Show the recipes
default:
    @just --list

# Make the environment
setup:
    python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]'

# All that CI runs
check:
    CI=true .venv/bin/pytest -n 2 --ignore tests/live && CI=true .venv/bin/pytest -n 3 --dist loadfile tests/live

# The quick tests, on two cores
test *args:
    .venv/bin/pytest -n 2 --dist loadgroup tests/unit tests/store tests/flow {{args}}

# Fix and format, then check lint, types, import contracts, layout and documentation
lint:
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .
    .venv/bin/pytest tests/architecture

# Tests with real Redis, PostgreSQL and worker processes, which they kill
live *args:
    .venv/bin/pytest -n 3 --dist loadfile tests/live {{args}}

# Everything fails at once, for a while: `just chaos --minutes 60 --seed 7`
chaos *args:
    .venv/bin/pytest -q -s tests/live/chaos/test_chaos.py {{args}}

# Take out each guard of the engine, and print which check misses it and when; `just sabotage "a call is claimed once"`
sabotage guard="all" *args:
    .venv/bin/pytest -q -s tests/live/chaos/test_sabotage.py --without "{{guard}}" {{args}}

# Measure against the baselines
bench *args:
    .venv/bin/chordage bench {{args}}

# A turn over several worker processes, in one minute
demo *args:
    .venv/bin/chordage demo {{args}}

# The console in a real browser: needs Chromium, Node and two packages of npm (tests/browser/tour.py says which)
browser *args:
    .venv/bin/python tests/browser/tour.py {{args}}
