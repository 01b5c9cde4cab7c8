"""The text that monitors read: Prometheus' format 0.0.4, and OpenMetrics 1.0, which differ in three lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from chordage.orchestrator.core.metrics import TOTAL, UNBOUNDED, MetricFamily, MetricKind, SumKey

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def text_of(families: Iterable[MetricFamily], sums: Mapping[SumKey, float], *, openmetrics: bool) -> str:
    """Each family, also one of which nothing is known yet. `sums`: of counters and histograms in stored units."""
    by_name: dict[str, dict[tuple[str, ...], dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for key, number in sums.items():
        by_name[key.name][key.labels][key.bucket] = number
    lines: list[str] = []
    for family in families:
        name = family.name.removesuffix("_total") if openmetrics else family.name
        lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}"]
        for labels, buckets in sorted(by_name[family.name].items()):
            lines += _samples(family, _pairs(family, labels), buckets)
    return "\n".join([*lines, *(["# EOF"] if openmetrics else [])]) + "\n"


def _samples(family: MetricFamily, pairs: list[str], buckets: Mapping[int, float]) -> Iterator[str]:
    total = buckets.get(TOTAL, 0) / family.scale
    if family.kind is not MetricKind.HISTOGRAM:
        yield _line(family.name, pairs, total)
        return
    # Bounds of another version keep their numbers.
    bounds = {round(bound * 1000) for bound in family.bounds} | set(buckets) - {TOTAL}
    reached = 0.0
    for bound in sorted(bounds - {UNBOUNDED}):
        reached += buckets.get(bound, 0)
        yield _line(f"{family.name}_bucket", [*pairs, f'le="{bound / 1000}"'], reached)
    reached += buckets.get(UNBOUNDED, 0)
    yield _line(f"{family.name}_bucket", [*pairs, 'le="+Inf"'], reached)
    yield _line(f"{family.name}_count", pairs, reached)
    yield _line(f"{family.name}_sum", pairs, total)


def _pairs(family: MetricFamily, labels: tuple[str, ...]) -> list[str]:
    return [f'{name}="{value.translate(_ESCAPED)}"' for name, value in zip(family.labels, labels, strict=True)]


def _line(name: str, pairs: list[str], number: float) -> str:
    listed = f"{{{','.join(pairs)}}}" if pairs else ""
    return f"{name}{listed} {int(number) if number == int(number) else repr(number)}"
