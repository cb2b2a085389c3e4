"""From a file of cases to a run, and from runs to files."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from app.errors import EvaluationError
from app.evaluation.asking import Server
from app.evaluation.cases import CaseFile
from app.evaluation.records import Run
from app.evaluation.scoring import figures, score


def evaluate(
    server: Server,
    file: Path,
    cases: CaseFile,
    *,
    label: str,
    parallel: int,
    collections: Sequence[str] = (),
    done: Callable[[], object] = lambda: None,
) -> Run:
    """Asks every case of the server and measures the replies; `done` is called after each."""
    started_at = datetime.now(UTC)
    replies = server.ask_all(cases.cases, parallel=parallel, collections=collections, done=done)
    results = tuple(score(case, reply) for case, reply in zip(cases.cases, replies, strict=True))
    return Run(
        label=label,
        file=str(file),
        started_at=started_at,
        parallel=parallel,
        server=server.info,
        figures=figures(results),
        results=results,
    )


class Output:
    """The two files of a result, side by side: `.json` for programs and `.html` for people.

    Made before the work, so that a place that cannot be written is known before hours have gone into it. Raises
    EvaluationError.
    """

    def __init__(self, path: Path) -> None:
        stem = path.with_suffix("") if path.suffix in (".json", ".html") else path
        self.json, self.html = (stem.with_name(stem.name + suffix) for suffix in (".json", ".html"))
        with _writing(self.json):
            self.json.parent.mkdir(parents=True, exist_ok=True)
            for file in (self.json, self.html):
                is_new = not file.exists()
                file.open("ab").close()
                if is_new:
                    file.unlink()

    def write(self, json: str, html: str) -> None:
        """Writes both, in place of what was there."""
        for file, text in ((self.json, json), (self.html, html)):
            with _writing(file):
                file.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EvaluationError(f"{file} cannot be written ({error.strerror}): name another place with --out") from None
