"""What `chordage bench` says and keeps, and what it refuses."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from chordage.benchmarks import command, plot, report, results
from chordage.benchmarks.command import bench
from chordage.benchmarks.counting import Counts
from chordage.benchmarks.measuring import Figure, NotEnded, Overhead, Recovery, Speed
from chordage.orchestrator.core.errors import ConfigError
from chordage.workers.cli import bench as command_of_the_package
from chordage.workers.cli.output import plain


def figure(value):
    return Figure(median=value, low=value / 2, high=value * 2)


def speed(ratio):
    one = figure(1.0)
    return Speed(
        turns=100, rate=figure(100 * ratio), idle_ms=one, cpu_ms=one, rate_ratio=figure(ratio),
        idle_ratio=figure(1 / ratio), cpu_ratio=one, chord_rate=figure(100.0),
    )  # fmt: skip


def measured(state="abc1234", ratio=0.8, at="2026-01-02T03:04+00:00"):
    counts = Counts(
        messages=6, redis_commands=101, redis_bytes=1000, commits=8, write_statements=16, read_statements=None,
        sql_bytes=1000,
    )  # fmt: skip
    found = results.begin("sqlite", 3)
    found.state, found.at = state, at
    found.speed = {"chordage": speed(ratio), "unsafe": speed(ratio / 2)}
    found.counts = {"chord": counts, "chordage": counts}
    found.overhead = {"chordage": {"1": Overhead(own_ms=figure(20.0), chord_ms=figure(10.0), ratio=figure(2.0))}}
    found.recovery = Recovery(turns=24, ended=24, last_s=9.5)
    return found


@pytest.fixture
def folder(tmp_path):
    """As the bench leaves it after five states."""
    for number in range(5):
        results.save(measured(f"state{number}", 1.0 + number, f"2026-01-0{number + 1}T00:00+00:00"), plain, tmp_path)
    return tmp_path


def test_report_shows_ratios_to_the_chord_with_their_range(capsys):
    report.show(measured())

    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("chordage")).split()[1:5] == [
        "0.80", "(0.40-1.60)", "1.25", "(0.62-2.50)"
    ]  # fmt: skip
    assert any(line.split() == ["chordage", "1", "2.00", "(1.00-4.00)"] for line in lines)
    assert "24 ended, the last 9.5 s after the kill" in "".join(lines)


def test_report_names_state_and_machine_and_neither_host_nor_folder(capsys):
    report.show(measured())

    said = capsys.readouterr().out
    assert "abc1234" in said
    assert "celery 5" in said
    kept = json.dumps(measured().machine)
    assert results.platform.node() not in kept
    assert "/" not in kept


def test_report_leaves_out_what_was_not_measured(capsys):
    found = measured()
    found.overhead, found.recovery = {}, None

    report.show(found)

    said = capsys.readouterr().out
    assert "Overhead" not in said
    assert "killed" not in said


def test_scenario_whose_turns_did_not_end_is_told_beside_the_others(capsys):
    found = measured()
    found.failed = {"budgets": "3 of 800 turns did not end within 180 s"}

    report.show(found)

    said = capsys.readouterr().out
    assert "budgets: 3 of 800 turns did not end" in said
    assert "chordage" in said


def test_scenario_whose_turns_do_not_end_keeps_no_other_from_being_measured(monkeypatch):
    asked = []

    def measure(_self, scenario, *_):
        asked.append(scenario.name)
        if scenario.name == "unsafe":
            raise NotEnded("3 of 400 turns did not end")

    monkeypatch.setattr(command, "running_servers", lambda **_: nullcontext(SimpleNamespace(kind="sqlite")))
    monkeypatch.setattr(command.Measurement, "speed_and_counts", measure)

    done = CliRunner().invoke(bench, ["--only", "unsafe,plugin", "--json"])

    assert asked == ["unsafe", "plugin"]
    assert json.loads(done.stdout)["failed"] == {"unsafe": "3 of 400 turns did not end"}


def test_last_three_states_are_kept(folder):
    assert [state["state"] for state in results.kept(folder)] == ["state2", "state3", "state4"]


def test_state_that_is_measured_again_is_kept_once(folder):
    results.save(measured("state3", 9.0, "2026-02-01T00:00+00:00"), plain, folder)

    assert [state["state"] for state in results.kept(folder)] == ["state2", "state4", "state3"]


def test_kept_states_are_compared_scenario_by_scenario(folder, capsys):
    report.compare(results.kept(folder))

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["scenario", "state2", "state3", "state4"] in rows
    assert ["unsafe", "1.50", "(0.75-3.00)", "2.00", "(1.00-4.00)", "2.50", "(1.25-5.00)"] in rows


def test_states_without_a_scenario_are_compared_all_the_same(folder, capsys):
    states = results.kept(folder)
    del states[0]["speed"]["unsafe"]
    states[1]["recovery"] = None

    report.compare(states)

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["unsafe", "-", "2.00", "(1.00-4.00)", "2.50", "(1.25-5.00)"] in rows
    assert ["last", "end", "after", "a", "kill,", "s", "9.5", "-", "9.5"] in rows


def test_picture_of_the_kept_states_has_a_bar_for_each(folder, tmp_path):
    file = tmp_path / "picture.svg"

    plot.draw(results.kept(folder), file)

    found = ET.parse(file).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    bars = [bar for bar in found.iter(f"{svg}rect") if bar.get("height") == str(plot.BAR - 1)]
    assert len(bars) >= 2 * 2 * 3  # panels, scenarios, states
    assert {"state2, 2026-01-03", "state4, 2026-01-05"} <= {text.text for text in found.iter(f"{svg}text")}


def test_nothing_is_drawn_of_nothing(tmp_path):
    plot.draw([], tmp_path / "picture.svg")

    assert not (tmp_path / "picture.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "here,fastest"], "there is no 'fastest': choose from chordage, here,"),
        (["--postgres", "--database", "sqlite:///x"], "--database and --postgres exclude each other"),
        (["--turns", "0"], "0 is not in the range"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(arguments, said):
    done = CliRunner().invoke(bench, arguments)

    assert done.exit_code == 2
    assert said in done.output


def test_package_without_the_benchmarks_names_their_place(monkeypatch):
    monkeypatch.setattr(command_of_the_package, "COMMAND", "chordage.benchmarks_elsewhere.command")

    done = CliRunner().invoke(command_of_the_package._load(), ["--postgres"])

    assert isinstance(done.exception, ConfigError)
    assert "clone of Chordage's repository" in str(done.exception)


def test_module_that_the_benchmarks_miss_is_named(monkeypatch, tmp_path):
    (tmp_path / "broken_benchmarks.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(command_of_the_package, "COMMAND", "broken_benchmarks")

    with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has"):
        command_of_the_package._load()
