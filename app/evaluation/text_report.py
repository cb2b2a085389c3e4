"""An evaluation, or two compared, as text for a terminal."""

from collections.abc import Iterator, Sequence

from app.evaluation.comparison import Comparison, Pair
from app.evaluation.records import FoundPassage, Result, Run
from app.evaluation.scoring import MEASURES, median_seconds, median_words

MAX_SHOWN = 20
MAX_CHARS = 160
LABEL_WIDTH = max(len(measure.label) for measure in MEASURES)


def report(run: Run) -> str:
    """Figures, then the failing cases with what was found instead (the first twenty; files hold all)."""
    lines = [f"{len(run.results)} cases of {run.file}, model {run.server.model} at {run.server.url}"]
    for group in ("Finding", "Answering"):
        rows = [measure for measure in MEASURES if measure.group == group and measure.name in run.figures]
        if rows:
            lines += ["", f"{group:<{LABEL_WIDTH}}    value   95% interval    cases"]
        for measure in rows:
            figure = run.figures[measure.name]
            interval = f"{figure.low:.3f} – {figure.high:.3f}"
            lines.append(f"  {measure.label:<{LABEL_WIDTH}}  {figure.value:.3f}   {interval}  {figure.cases:>6}")
    seconds, words = median_seconds(run.results), median_words(run.results)
    if seconds is not None:
        lines += ["", f"Median answer: {words:g} words in {seconds:.1f} s, {run.parallel} at a time"]
    lines += [
        "",
        f"{len(run.failing)} of {len(run.results)} cases have something wrong" + (":" if run.failing else "."),
    ]
    for result in run.failing[:MAX_SHOWN]:
        lines += ["", *_failing_case(result)]
    if len(run.failing) > MAX_SHOWN:
        lines += ["", f"… and {len(run.failing) - MAX_SHOWN} more, in the report."]
    return "\n".join(lines)


def comparison_report(comparison: Comparison) -> str:
    """Differences of the measures, then the cases that changed sides."""
    first, second = comparison.first, comparison.second
    lines = [
        f"A  {first.label}: model {first.server.model}, {first.started_at:%Y-%m-%d %H:%M}",
        f"B  {second.label}: model {second.server.model}, {second.started_at:%Y-%m-%d %H:%M}",
        "",
        f"{len(comparison.pairs)} cases in both"
        + (f"; {comparison.num_unpaired} left out, not answered in both" if comparison.num_unpaired else ""),
        "",
        f"{'':<{LABEL_WIDTH}}      A      B    B − A   95% interval    cases",
    ]
    for row in comparison.differences:
        change = f"{row.change.value:+.3f}   {row.change.low:+.3f} to {row.change.high:+.3f}"
        clear = "  clear" if row.is_clear else ""
        lines.append(
            f"  {row.measure.label:<{LABEL_WIDTH}}  {row.first:.3f}  {row.second:.3f}  {change}  {row.cases:>5}{clear}"
        )
    for title, pairs in (("Wrong in B only", comparison.broken), ("Wrong in A only", comparison.mended)):
        lines += ["", f"{title}: {len(pairs)}"]
        for pair in pairs[:MAX_SHOWN]:
            lines += _changed_case(pair)
        if len(pairs) > MAX_SHOWN:
            lines.append(f"  … and {len(pairs) - MAX_SHOWN} more")
    lines += ["", f"Wrong in both: {comparison.num_both_wrong}"]
    return "\n".join(lines)


def place(passage: FoundPassage) -> str:
    """Where a passage stands: document, page, heading."""
    name = passage.source.rsplit("/", 1)[-1] or passage.title
    page = f", page {passage.page}" if passage.page is not None else ""
    heading = f" › {passage.heading}" if passage.heading else ""
    return f"{name}{page}{heading}"


def shortened(text: str, max_chars: int = MAX_CHARS) -> str:
    """One printable line of at most `max_chars` characters; control characters, which could steer a terminal, go."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def _failing_case(result: Result) -> Iterator[str]:
    case, reply = result.case, result.reply
    yield f"  {shortened(case.id, 40)} (line {case.line})  {shortened(case.question)}"
    for failure in result.failures:
        yield f"    wrong     {shortened(failure)}"
    if case.facts:
        yield f"    expected  {shortened(' | '.join(case.facts))}"
    if reply.error is None:
        yield f"    answered  {shortened(reply.answer) or '(nothing)'}"
    if case.sources:
        yield f"    source    {shortened(' | '.join(case.sources))}"
    yield from _found(reply.passages)


def _found(passages: Sequence[FoundPassage]) -> Iterator[str]:
    for rank, passage in enumerate(passages, start=1):
        yield f"    found {rank}   {shortened(place(passage), 60)}: {shortened(passage.text, 90)}"


def _changed_case(pair: Pair) -> Iterator[str]:
    before, after = pair
    yield f"  {shortened(before.case.id, 40)}  {shortened(before.case.question)}"
    for name, result in (("A", before), ("B", after)):
        wrong = f"  ({'; '.join(result.failures)})" if result.failures else ""
        yield f"    {name}  {shortened(result.reply.answer) or '(nothing)'}{wrong}"
