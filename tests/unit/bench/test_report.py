"""What `chordage bench` says, and what it refuses."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from chordage.benchmarks import command, report
from chordage.benchmarks.command import bench
from chordage.benchmarks.counting import Counts
from chordage.benchmarks.measuring import HistoryCost, Latency, Speed
from chordage.benchmarks.report import Results
from chordage.orchestrator.core.errors import ConfigError
from chordage.workers.cli import bench as command_of_the_package
from chordage.workers.cli.output import plain


def counts(redis_bytes=1000.0):
    return Counts(
        messages=6, redis_commands=101, redis_bytes=redis_bytes, commits=8, write_statements=16,
        read_statements=None, sql_bytes=1000,
    )  # fmt: skip


def speed(rate):
    return Speed(rate=rate, rates=(rate,), idle_p50=1 / rate, idle_p95=2 / rate, cpu_ms=None)


@pytest.fixture
def results():
    return Results(
        machine=command._machine(),
        database="sqlite",
        setup={"turns": 300},
        speed={"bare": speed(100.0), "chordage": speed(80.0)},
        counts={"bare": counts(), "chordage": counts()},
        over_ideal={"bare": {1: Latency(p50=0.011, p95=0.02, last=0.03), 50: Latency(p50=0.272, p95=0.3, last=34)}},
        histories={"bare": [HistoryCost(messages=n, p50=n / 1e3, counts=counts(n * 100)) for n in (10, 1000)]},
        per_round={"bare": {1: 0.009, 10: 0.008, 50: 0.016}},
    )


def test_report_shows_ratios_to_the_first_contender(results, capsys):
    report.show(results)

    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("chordage")).split()[1:3] == ["0.80", "1.25"]
    assert any(" ".join(line.split()) == "bare 11 / 20 / 30 272 / 300 / 34000" for line in lines)
    assert any(line.split()[:3] == ["bare", "50.50", "100.00"] for line in lines)
    assert any(line.split()[:2] == ["bare", "2.00"] for line in lines)


def test_report_names_the_machine_it_was_made_on(results, capsys):
    report.show(results)

    said = capsys.readouterr().out
    assert "cores" in said
    assert "celery 5" in said


def test_report_leaves_out_what_was_not_measured(results, capsys):
    results.over_ideal, results.histories, results.per_round = {}, {}, {}

    report.show(results)

    said = capsys.readouterr().out
    assert "ideal" not in said
    assert "round" not in said


def test_results_are_json_with_every_figure(results):
    found = json.loads(json.dumps(results, default=plain))

    assert found["speed"]["chordage"]["rate"] == 80.0
    assert found["histories"]["bare"][1]["counts"]["redis_bytes"] == 100_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "bare,fastest"], "there is no 'fastest': choose from bare, bare+sql, chordage, chordage-all"),
        (["--postgres", "--database", "sqlite:///x"], "--database and --postgres exclude each other"),
        (["--in-flight", "0"], "0 is not in the range"),
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
