"""An evaluation, or two compared, as one HTML page with plots: no script, nothing fetched, every text escaped."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from app.evaluation.comparison import Comparison, Pair
from app.evaluation.records import FoundPassage, Result, Run
from app.evaluation.scoring import MEASURES, median_seconds, median_words, source_rank
from app.evaluation.text_report import place

# What the page may do, were a text to get past the escaping: nothing but look as it does.
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --line: #8886; --mark: #3b7dd8; --bad: #c0392b; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
details {{ border-bottom: 1px solid var(--line); padding: .4rem 0; }}
summary {{ cursor: pointer; }}
dt {{ font-weight: 600; }} dd {{ margin: 0 0 .5rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }}
.bad {{ color: var(--bad); }}
svg {{ max-width: 100%; height: auto; font: 13px system-ui, sans-serif; }}
svg text {{ fill: currentColor; }} svg line {{ stroke: var(--line); }}
svg .whisker {{ stroke: var(--mark); stroke-width: 3; }} svg .mark {{ fill: var(--mark); }}
</style></head><body>
"""
_FOOT = "</body></html>\n"

# Plots, in pixels.
LABEL_PX, PLOT_PX, ROW_PX, VALUE_PX = 230, 380, 26, 150


@dataclass(frozen=True)
class Bar:
    """A row of a plot of intervals."""

    label: str
    value: float
    low: float
    high: float


def report(run: Run) -> str:
    """The page of one evaluation: figures with their intervals, where sources were found, and every case."""
    bars, rows = [], []
    for measure in MEASURES:
        if (figure := run.figures.get(measure.name)) is not None:
            bars.append(Bar(measure.label, figure.value, figure.low, figure.high))
            interval = f"{figure.low:.3f} – {figure.high:.3f}"
            rows.append((measure.label, f"{figure.value:.3f}", interval, str(figure.cases)))
    seconds, words = median_seconds(run.results), median_words(run.results)
    facts = [
        ("Model", run.server.model),
        ("Server", f"{run.server.url}, {run.server.num_documents:,} documents"),
        ("Asked", f"{run.started_at:%Y-%m-%d %H:%M} UTC, {run.parallel} at a time"),
        ("Cases", f"{len(run.results)}, of which {len(run.failing)} with something wrong"),
    ]
    if seconds is not None:
        facts.append(("Median answer", f"{words:g} words in {seconds:.1f} s"))
    passed = [result for result in run.results if not result.failures]
    return "".join(
        (
            _HEAD.format(title=escape(f"Evaluation: {run.label}")),
            f"<h1>Evaluation: {escape(run.label)}</h1>",
            _table(("", ""), facts, numbers=0),
            "<h2>Figures</h2>",
            _interval_plot(bars, 0.0, 1.0, "Measures with their 95% intervals"),
            _table(("measure", "value", "95% interval", "cases"), rows, numbers=3),
            _rank_plot(run.results),
            _answer_plot(run.results),
            f"<h2>Something wrong ({len(run.failing)})</h2>",
            *map(_case, run.failing),
            f"<h2>Nothing wrong ({len(passed)})</h2>",
            *map(_case, passed),
            _FOOT,
        )
    )


def comparison_report(comparison: Comparison) -> str:
    """The page of two runs: differences with their intervals, and the cases that changed sides."""
    first, second = comparison.first, comparison.second
    bars = [Bar(row.measure.label, row.change.value, row.change.low, row.change.high) for row in comparison.differences]
    reach = max((max(abs(bar.low), abs(bar.high)) for bar in bars), default=0.0) or 1.0
    rows = [
        (
            row.measure.label,
            f"{row.first:.3f}",
            f"{row.second:.3f}",
            f"{row.change.value:+.3f}",
            f"{row.change.low:+.3f} to {row.change.high:+.3f}",
            str(row.cases),
        )
        for row in comparison.differences
    ]
    facts = [
        (name, f"{run.label}: model {run.server.model}, {run.started_at:%Y-%m-%d %H:%M} UTC")
        for name, run in (("A", first), ("B", second))
    ]
    facts.append(("Cases", f"{len(comparison.pairs)} in both, {comparison.num_unpaired} left out"))
    facts.append(("Wrong in both", str(comparison.num_both_wrong)))
    return "".join(
        (
            _HEAD.format(title=escape(f"Comparison: {first.label} and {second.label}")),
            "<h1>Comparison</h1>",
            _table(("", ""), facts, numbers=0),
            "<h2>B − A</h2>",
            _interval_plot(bars, -reach, reach, "Differences, B minus A, with their paired 95% intervals"),
            _table(("measure", "A", "B", "B − A", "95% interval", "cases"), rows, numbers=5),
            f"<h2>Wrong in B only ({len(comparison.broken)})</h2>",
            *map(_pair, comparison.broken),
            f"<h2>Wrong in A only ({len(comparison.mended)})</h2>",
            *map(_pair, comparison.mended),
            _FOOT,
        )
    )


# ── plots ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _interval_plot(bars: Sequence[Bar], low: float, high: float, title: str) -> str:
    """A dot with its whisker for each bar, on an axis from `low` to `high`."""
    if not bars:
        return ""

    def x(value: float) -> float:
        return LABEL_PX + PLOT_PX * (value - low) / (high - low)

    bottom = ROW_PX * len(bars) + 8
    parts = []
    for tick in (low + (high - low) * step / 4 for step in range(5)):
        parts.append(f'<line x1="{x(tick):.1f}" y1="4" x2="{x(tick):.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:.2f}</text>')
    for index, bar in enumerate(bars):
        y = ROW_PX * index + 18
        parts.append(f'<text x="{LABEL_PX - 10}" y="{y + 4}" text-anchor="end">{escape(bar.label)}</text>')
        parts.append(f'<line class="whisker" x1="{x(bar.low):.1f}" y1="{y}" x2="{x(bar.high):.1f}" y2="{y}"/>')
        parts.append(f'<circle class="mark" cx="{x(bar.value):.1f}" cy="{y}" r="5"/>')
    return _svg(LABEL_PX + PLOT_PX + 40, bottom + 24, title, parts)


def _count_plot(counts: Sequence[tuple[str, int]], title: str) -> str:
    most = max(count for _, count in counts) or 1
    parts = []
    for index, (label, count) in enumerate(counts):
        y = ROW_PX * index
        width = PLOT_PX * count / most
        parts.append(f'<text x="{LABEL_PX - 10}" y="{y + 18}" text-anchor="end">{escape(label)}</text>')
        parts.append(f'<rect class="mark" x="{LABEL_PX}" y="{y + 5}" width="{width:.1f}" height="{ROW_PX - 10}"/>')
        parts.append(f'<text x="{LABEL_PX + width + 6:.1f}" y="{y + 18}">{count}</text>')
    return f"<h3>{escape(title)}</h3>" + _svg(LABEL_PX + PLOT_PX + VALUE_PX, ROW_PX * len(counts), title, parts)


def _svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _rank_plot(results: Sequence[Result]) -> str:
    """At which rank the source was found."""
    ranks = Counter(
        source_rank(result.case, result.reply.passages) for result in results if "source_found" in result.scores
    )
    if not ranks:
        return ""
    deepest = max((rank for rank in ranks if rank is not None), default=0)
    counts = [(f"rank {rank}", ranks[rank]) for rank in range(1, deepest + 1)]
    return _count_plot([*counts, ("not found", ranks[None])], "Rank of the source, in cases")


def _answer_plot(results: Sequence[Result]) -> str:
    """Where answers with an expected text got lost."""
    outcomes: Counter[str] = Counter()
    for result in results:
        if "contains" in result.scores:
            found = "found" if result.scores["answer_in_passages"] else "not found"
            told = "answered" if result.scores["contains"] else "not answered"
            outcomes[f"{found}, {told}"] += 1
    if not outcomes:
        return ""
    labels = ("found, answered", "found, not answered", "not found, answered", "not found, not answered")
    return _count_plot([(label, outcomes[label]) for label in labels], "Expected text in passages and answer, in cases")


# ── tables and cases ─────────────────────────────────────────────────────────────────────────────────────────────────


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> str:
    """A table whose last `numbers` columns are numbers."""
    first_number = len(headings) - numbers

    def row(cells: Sequence[str], tag: str) -> str:
        marks = ["" if column < first_number else ' class="number"' for column in range(len(cells))]
        marked = zip(cells, marks, strict=True)
        return "<tr>" + "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in marked) + "</tr>"

    head = row(headings, "th") if any(headings) else ""
    return f"<table>{head}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _case(result: Result) -> str:
    case = result.case
    entries = [*_wanted(result), ("Answer", result.reply.answer)]
    entries += [(f"Passage {rank}", _shown(passage)) for rank, passage in enumerate(result.reply.passages, start=1)]
    wrong = "".join(f'<div class="bad">{escape(failure)}</div>' for failure in result.failures)
    return f"<details><summary>{escape(case.id)}: {escape(case.question)}{wrong}</summary>{_entries(entries)}</details>"


def _pair(pair: Pair) -> str:
    before, after = pair
    entries = list(_wanted(before))
    for name, result in (("A", before), ("B", after)):
        entries.append((f"Answer of {name}", result.reply.answer))
        entries += [(f"Wrong in {name}", failure) for failure in result.failures]
        entries.append((f"Found in {name}", "\n".join(map(place, result.reply.passages))))
    case = before.case
    return f"<details><summary>{escape(case.id)}: {escape(case.question)}</summary>{_entries(entries)}</details>"


def _wanted(result: Result) -> Iterable[tuple[str, str]]:
    case = result.case
    if case.facts:
        yield "Expected", " | ".join(case.facts)
    if case.sources:
        yield "Source", " | ".join(case.sources)
    if not case.answerable:
        yield "Expected", "a refusal"


def _shown(passage: FoundPassage) -> str:
    return f"{place(passage)} (score {passage.score:.2f})\n{passage.text}"


def _entries(entries: Iterable[tuple[str, str]]) -> str:
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text) or '(nothing)'}</dd>" for name, text in entries)
    return f"<dl>{shown}</dl>"
