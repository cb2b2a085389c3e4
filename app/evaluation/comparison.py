"""Two runs over the same cases side by side: paired differences, and the cases that only one of them got wrong."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from app.errors import EvaluationFileError
from app.evaluation.records import Result, Run
from app.evaluation.scoring import MEASURES, Measure
from retrieval.metrics import Interval, mean_interval

Pair = tuple[Result, Result]


@dataclass(frozen=True)
class Difference:
    """A measure of both runs over the same cases; `change` is second minus first, with its paired 95 % interval."""

    measure: Measure
    first: float
    second: float
    change: Interval
    cases: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.change.low > 0 or self.change.high < 0


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs. `num_unpaired` cases stand in one run only, or were answered in one only."""

    first: Run
    second: Run
    differences: tuple[Difference, ...]
    pairs: tuple[Pair, ...]
    num_unpaired: int

    @property
    def mended(self) -> Sequence[Pair]:
        """Cases that only the first run got wrong."""
        return [(before, after) for before, after in self.pairs if before.failures and not after.failures]

    @property
    def broken(self) -> Sequence[Pair]:
        """Cases that only the second run got wrong."""
        return [(before, after) for before, after in self.pairs if after.failures and not before.failures]

    @property
    def num_both_wrong(self) -> int:
        """How many cases both runs got wrong."""
        return sum(bool(before.failures and after.failures) for before, after in self.pairs)

    def as_json(self) -> str:
        """The figures, and the ids of the cases that changed sides."""
        values = {
            "kind": "ragstone-eval-comparison",
            "version": 1,
            "first": self.first.label,
            "second": self.second.label,
            "cases": len(self.pairs),
            "unpaired": self.num_unpaired,
            "differences": {
                row.measure.name: {
                    "first": row.first,
                    "second": row.second,
                    "change": dataclasses.asdict(row.change),
                    "cases": row.cases,
                }
                for row in self.differences
            },
            "wrong_in_second_only": [before.case.id for before, _ in self.broken],
            "wrong_in_first_only": [before.case.id for before, _ in self.mended],
            "wrong_in_both": self.num_both_wrong,
        }
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def compare(first: Run, second: Run) -> Comparison:
    """Pairs cases by id and content; intervals by bootstrap over the paired differences.

    Raises EvaluationFileError when no case is in both.
    """
    before, after = _answered(first), _answered(second)
    pairs = tuple(
        (result, after[case_id])
        for case_id, result in before.items()
        if case_id in after and _same(result, after[case_id])
    )
    if not pairs:
        raise EvaluationFileError(
            f"{first.label} and {second.label} have no answered case in common, by id, question and what is expected: "
            "compare two runs of one file"
        )
    everything = {result.case.id for run in (first, second) for result in run.results}
    differences = (_difference(measure, pairs) for measure in MEASURES)
    return Comparison(
        first=first,
        second=second,
        differences=tuple(difference for difference in differences if difference is not None),
        pairs=pairs,
        num_unpaired=len(everything) - len(pairs),
    )


def _answered(run: Run) -> dict[str, Result]:
    return {result.case.id: result for result in run.results if result.reply.error is None}


def _same(first: Result, second: Result) -> bool:
    # Where it stands in the file makes no difference.
    return first.case.model_copy(update={"line": 0}) == second.case.model_copy(update={"line": 0})


def _difference(measure: Measure, pairs: Sequence[Pair]) -> Difference | None:
    scores = [
        (before.scores[measure.name], after.scores[measure.name])
        for before, after in pairs
        if measure.name in before.scores and measure.name in after.scores
    ]
    if not scores:
        return None
    return Difference(
        measure=measure,
        first=sum(before for before, _ in scores) / len(scores),
        second=sum(after for _, after in scores) / len(scores),
        change=mean_interval([after - before for before, after in scores]),
        cases=len(scores),
    )
