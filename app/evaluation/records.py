"""The values of an evaluation: cases, replies, results and runs. A run's JSON is `Run` as it stands here."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from app.errors import EvaluationFileError
from app.validation_text import explain


class Record(BaseModel):
    """Base of all values here: they never change, and a file with other fields is not read as if it had ours."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Case(Record):
    """One question and what is right. `line` is its line in the file, counted from 1.

    `answers` are accepted answers, `expected` facts of which an answer has to hold one, `sources` documents by title,
    path or file name; each may be empty. An `answerable` of False asks for a refusal.
    """

    id: str
    line: int
    question: str
    answers: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    answerable: bool = True

    @property
    def facts(self) -> tuple[str, ...]:
        """What an answer has to hold one of: the expected facts, else the accepted answers."""
        if not self.answerable:
            return ()
        return self.expected or self.answers


class FoundPassage(Record):
    """A passage under an answer, which refers to it as [n].

    `source` is its document's path or address, empty where the server lists none.
    """

    n: int
    document_id: str
    title: str
    source: str
    page: int | None
    heading: str | None
    text: str
    score: float


class Reply(Record):
    """What the server answered: passages best first, or in `error` why there is no answer.

    Where it checks answers: whether it refused, and the share of the answer's sentences that a passage supports; else
    None.
    """

    answer: str = ""
    refused: bool | None = None
    supported: float | None = None
    passages: tuple[FoundPassage, ...] = ()
    seconds: float = 0.0
    error: str | None = None


class Result(Record):
    """A case, its reply, its measures by name (only those that apply), and in sentences what is wrong with it."""

    case: Case
    reply: Reply
    scores: dict[str, float]
    failures: tuple[str, ...]


class ServerInfo(Record):
    """The server that was asked."""

    url: str
    model: str
    num_documents: int


class Figure(Record):
    """A measure over the cases that it applies to, with its 95 % interval."""

    value: float
    low: float
    high: float
    cases: int


class Run(Record):
    """One evaluation. `figures` follow from `results` and stand here for whoever reads the file."""

    kind: Literal["ragstone-eval"] = "ragstone-eval"
    version: Literal[1] = 1
    label: str
    file: str
    started_at: datetime
    parallel: int
    server: ServerInfo
    figures: dict[str, Figure]
    results: tuple[Result, ...]

    @property
    def failing(self) -> Sequence[Result]:
        """The cases with something wrong, in the file's order."""
        return [result for result in self.results if result.failures]

    @property
    def num_unanswered(self) -> int:
        """Cases that the server gave no answer to, which no measure counts."""
        return sum(result.reply.error is not None for result in self.results)


def read_run(path: Path) -> Run:
    """A run from its JSON. Raises EvaluationFileError."""
    try:
        return Run.model_validate_json(path.read_bytes())
    except OSError as error:
        raise EvaluationFileError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise EvaluationFileError(
            f"{path} is not the JSON of an evaluation ({explain(error.errors())[0]}): "
            "give two files that `ragstone eval FILE.jsonl` of this version has written"
        ) from None
