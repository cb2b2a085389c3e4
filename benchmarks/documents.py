"""Long documents with the real embedding model: time, memory, progress and delete; and rows found in a long table.

    python -m benchmarks.documents [--docx-pages 900] [--pdf-pages 250] [--rows 3500] [--model FOLDER] [--json FILE]

The pages are made here, of the sample handbook's sentences in an order drawn with seed 0, about 2,500 characters each.
A table has a part number and another a person's name in each row; a question about a row is about one of them. Each
document is taken in by a process of its own, whose largest resident memory is the figure given.
"""

import argparse
import io
import itertools
import json
import multiprocessing
import random
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import docx
import fpdf

from benchmarks.embedding import default_model
from benchmarks.machine import describe_machine

HANDBOOK = Path(__file__).resolve().parents[1] / "data" / "handbook"
PAGE_CHARS = 2_500
NUM_QUESTIONS = 40
MAX_GIB = 1.5
_FIRST = "Anna Boris Chen Dana Emil Fatima Goran Hana Igor Jana Karl Lena Marco Nadia Olga Pavel Quinn Rosa Stefan Tara"
_SECOND = "Alder Birk Cole Dean Esme Finn Gray Hope"
_LAST = (
    "Abbott Berger Castro Duarte Eriksen Fischer Gruber Hansen Ivanov Jensen Keller Lopez Moreau Novak Olsen Petrov "
    "Rossi Schmidt Tanaka Ueda Vidal Weber Young Zeman"
)
_CITIES = "Oslo Lima Cairo Perth Turin Quito Dakar Hanoi"
_DEPARTMENTS = "Sales Research Finance Legal Support"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docx-pages", type=int, default=900)
    parser.add_argument("--pdf-pages", type=int, default=250)
    parser.add_argument("--rows", type=int, default=3500, help="rows of each table")
    parser.add_argument("--model", type=Path, help="folder of the embedding model (default: the packaged one)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    model = options.model or default_model()
    report: dict[str, Any] = {"machine": describe_machine()}
    kinds: list[tuple[str, int, Callable[[int], bytes]]] = [
        ("contract.docx", options.docx_pages, word_file),
        ("manual.pdf", options.pdf_pages, pdf_file),
        ("parts.csv", options.rows, lambda rows: _table(parts(rows))),
        ("people.csv", options.rows, lambda rows: _table(people(rows))),
    ]
    for name, size, made in kinds:
        if size:
            report[name] = _in_a_child(model, name, made(size), size)
            print_document(name, report[name])
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


# ── what is taken in ─────────────────────────────────────────────────────────────────────────────────────────────────


def word_file(num_pages: int) -> bytes:
    """A heading and paragraphs on each page."""
    document = docx.Document()
    for number, paragraphs in enumerate(_pages(num_pages), 1):
        document.add_heading(f"Clause {number}", level=1)
        for paragraph in paragraphs:
            document.add_paragraph(paragraph)
        document.add_page_break()
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def pdf_file(num_pages: int) -> bytes:
    """The same as a PDF."""
    document = fpdf.FPDF()
    document.set_auto_page_break(False)
    for number, paragraphs in enumerate(_pages(num_pages), 1):
        document.add_page()
        document.set_font("Helvetica", size=14)
        document.cell(text=f"Procedure {number}", new_x="LMARGIN", new_y="NEXT")
        document.set_font("Helvetica", size=9)
        for paragraph in paragraphs:
            document.multi_cell(0, text=paragraph, new_x="LMARGIN", new_y="NEXT")
    return bytes(document.output())


def _pages(number: int) -> Iterator[list[str]]:
    text = " ".join(path.read_text(encoding="utf-8") for path in sorted(HANDBOOK.glob("*.md")))
    plain = re.sub(r"[^ -~]+|[#|*`_>]+", " ", text)
    sentences = [sentence for sentence in re.split(r"(?<=[.?!])\s+", plain) if 30 < len(sentence) < 400]
    drawn = random.Random(0)
    for _ in range(number):
        page: list[str] = []
        while sum(map(len, page)) < PAGE_CHARS:
            page.append(" ".join(drawn.choice(sentences) for _ in range(4)))
        yield page


Row = tuple[str, ...]


def parts(number: int) -> list[Row]:
    """The header and rows that differ by a part number."""
    drawn = random.Random(0)
    cities = itertools.cycle(_CITIES.split())
    rows = [
        (f"PX-{10_000 + row}", next(cities), str(drawn.randrange(900)), f"{drawn.randrange(10**5) / 100:.2f}")
        for row in range(number)
    ]
    return [("Part number", "Warehouse", "Stock", "Unit price"), *rows]


def people(number: int) -> list[Row]:
    """The header and rows that differ by a name."""
    drawn = random.Random(0)
    names = [" ".join(name) for name in itertools.product(_FIRST.split(), _SECOND.split(), _LAST.split())]
    drawn.shuffle(names)
    rows = [
        (name, drawn.choice(_CITIES.split()), drawn.choice(_DEPARTMENTS.split()), str(500 * drawn.randrange(40, 400)))
        for name in names[:number]
    ]
    return [("Employee", "Office", "Department", "Salary"), *rows]


def questions(name: str, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Questions about rows, each with how the row begins that answers it."""
    asked = {
        "parts.csv": ("What is the unit price of part {}?", "How many of {} are in stock?"),
        "people.csv": ("Which department does {} work in?", "What does {} earn?"),
    }[name]
    chosen = random.Random(1).sample(list(rows[1:]), min(NUM_QUESTIONS, len(rows) - 1))
    return [(asked[index % 2].format(row[0]), f"{rows[0][0]} {row[0]}:") for index, row in enumerate(chosen)]


def _table(rows: Sequence[Row]) -> bytes:
    return "\n".join(",".join(row) for row in rows).encode()


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_a_child(model: Path, name: str, data: bytes, size: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        figures: dict[str, Any] = pool.apply(measure, (model, name, data, size))
    return figures


def measure(model: Path, name: str, data: bytes, size: int) -> dict[str, Any]:
    """Takes one document in, asks about its rows where it is a table, and deletes it."""
    from retrieval import Embedder, KnowledgeBase

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        embedder = Embedder(model)
        embedder.load()
        steps: list[tuple[int, int]] = []
        with KnowledgeBase.open(Path(folder, "store"), embedder) as knowledge_base:
            started, used = time.perf_counter(), time.process_time()
            (result,) = knowledge_base.ingest_paths(
                [path], embedding=lambda _, done, total: steps.append((done, total))
            )
            figures: dict[str, Any] = {
                "size": size,
                "bytes": len(data),
                "status": result.status,
                "chunks": result.num_chunks,
                "seconds": time.perf_counter() - started,
                "cpu_seconds": time.process_time() - used,
                "steps": len(steps),
                "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            }
            if name.endswith(".csv"):
                rows = parts(size) if name == "parts.csv" else people(size)
                figures |= _found(knowledge_base, questions(name, rows))
            documents = knowledge_base.documents()
            figures["documents"] = len(documents)
            figures["deleted"] = knowledge_base.delete_document(documents[0].document_id)
            figures["chunks_left"] = knowledge_base.stats()["chunks"]
    return figures


def _found(knowledge_base: Any, asked: Sequence[tuple[str, str]]) -> dict[str, int]:
    places = []
    for question, begin in asked:
        texts = [passage.text for passage in knowledge_base.search(question, k=5)]
        places.append(next((place for place, text in enumerate(texts) if text.startswith(begin)), 5))
    return {"questions": len(places), "first": places.count(0), "in_five": sum(place < 5 for place in places)}


def print_document(name: str, figures: dict[str, Any]) -> None:
    """The figures beside what they are to be."""
    unit = "rows" if name.endswith(".csv") else "pages"
    print(
        f"{name}: {figures['size']:,} {unit}, {figures['chunks']:,} chunks, {figures['status']} in "
        f"{figures['seconds']:.0f} s ({figures['cpu_seconds']:.0f} s of CPU), told in {figures['steps']} steps, "
        f"{figures['peak_gib']:.2f} GiB at most (to be <= {MAX_GIB}); {figures['documents']} document, "
        f"{figures['chunks_left']} chunks left after one delete"
    )
    if "first" in figures:
        print(f"  of {figures['questions']} questions about a row, {figures['first']} find it in the first place, "
              f"{figures['in_five']} among five")  # fmt: skip


if __name__ == "__main__":
    main()
