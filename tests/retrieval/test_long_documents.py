"""Long documents are one document each: taken in with progress, found on the right page, gone with one delete."""

from pathlib import Path

from retrieval import KnowledgeBase
from retrieval.loaders import load
from tests.retrieval.office_files import with_member, word_file
from tests.retrieval.pdf_files import text_pdf

NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def long_word_file(num_pages: int) -> bytes:
    """A Word file with a heading and some paragraphs on each page."""
    pages = [
        f'<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Chapter {page}</w:t></w:r></w:p>'
        + "".join(f"<w:p><w:r><w:t>Clause{page}x{line} says so. {'word ' * 12}</w:t></w:r></w:p>" for line in range(4))
        + '<w:p><w:r><w:br w:type="page"/></w:r></w:p>'
        for page in range(1, num_pages + 1)
    ]
    xml = f'<w:document xmlns:w="{NAMESPACE}"><w:body>{"".join(pages)}</w:body></w:document>'
    return with_member(word_file(), "word/document.xml", xml)


def check_one_document(
    knowledge_base: KnowledgeBase, path: Path, question: str
) -> tuple[str | None, int | None, list[tuple[int, int]]]:
    """Takes the file in and drops it; heading and page of the best passage, and the steps that were reported."""
    steps: list[tuple[int, int]] = []
    (result,) = knowledge_base.ingest_paths([path], embedding=lambda _, done, total: steps.append((done, total)))
    assert result.status == "added"
    assert steps[-1] == (result.num_chunks, result.num_chunks)
    best = knowledge_base.search(question, k=1)[0]
    (document,) = knowledge_base.documents()
    assert knowledge_base.delete_document(document.document_id)
    assert knowledge_base.stats()["chunks"] == 0
    return best.heading, best.page, steps


def test_a_docx_of_900_pages(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = tmp_path / "contract.docx"
    path.write_bytes(long_word_file(900))
    heading, _, steps = check_one_document(knowledge_base, path, "Clause777x3")
    assert heading == "Chapter 777"
    assert len(steps) > 5


def test_a_label_merged_over_800_rows_stands_in_each_of_them() -> None:
    rows = "".join(
        f"<w:tr><w:tc><w:tcPr><w:vMerge{start}/></w:tcPr><w:p><w:r><w:t>{label}</w:t></w:r></w:p></w:tc>"
        f"<w:tc><w:p><w:r><w:t>value {number}</w:t></w:r></w:p></w:tc></w:tr>"
        for number, (start, label) in enumerate([(' w:val="restart"', "Ward")] + [("", "")] * 799)
    )
    xml = f'<w:document xmlns:w="{NAMESPACE}"><w:body><w:tbl>{rows}</w:tbl></w:body></w:document>'
    document = load("a.docx", with_member(word_file(), "word/document.xml", xml))
    assert document.text.endswith("Ward: value 0 value 799")


def test_a_pdf_of_250_pages(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = tmp_path / "manual.pdf"
    path.write_bytes(text_pdf([f"Procedure{page} is described here.\nThen more of it." for page in range(1, 251)]))
    _, page, _ = check_one_document(knowledge_base, path, "Procedure177")
    assert page == 177
