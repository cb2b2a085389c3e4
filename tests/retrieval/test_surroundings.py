from pathlib import Path

from retrieval import KnowledgeBase


def count_words(text: str) -> int:
    return len(text.split())


def test_a_passage_grows_to_its_section_within_the_budget(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    sentences = [f"Sentence {number} of the long section speaks of item{number}." for number in range(200)]
    path = tmp_path / "a.md"
    path.write_text("# Doc\n\n## Before\n\nOther.\n\n## Long\n\n" + " ".join(sentences) + "\n\n## After\n\nMore.")
    knowledge_base.ingest_file(path)
    (passage,) = knowledge_base.search("item100", k=1)
    assert passage.heading == "Long"
    small = knowledge_base.surroundings(passage, 10, count_words)
    assert small == passage.text
    wider = knowledge_base.surroundings(passage, 400, count_words)
    assert passage.text in wider
    assert len(passage.text) < len(wider)
    assert 250 < count_words(wider) <= 400
    assert wider in " ".join(sentences)
    assert knowledge_base.surroundings(passage, 10_000, count_words) == " ".join(sentences)
    knowledge_base.delete_document(passage.document_id)
    assert knowledge_base.surroundings(passage, 400, count_words) == passage.text


def test_a_cut_table_shows_its_header_once(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    table = "| model | memory |\n|---|---|\n" + "\n".join(f"| type{n} | {n} gigabytes of memory |" for n in range(100))
    path.write_text(table)
    knowledge_base.ingest_file(path)
    (passage,) = knowledge_base.search("type70", k=1)
    assert passage.text.startswith("| model | memory |")
    assert knowledge_base.surroundings(passage, 10_000, count_words) == table


def test_a_row_grows_to_its_neighbours(knowledge_base: KnowledgeBase, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("city,inhabitants\n" + "\n".join(f"town{n},{n * 100}" for n in range(50)))
    knowledge_base.ingest_file(path)
    (passage,) = knowledge_base.search("town20", k=1)
    assert (passage.text, passage.heading) == ("city town20: inhabitants 2000", "row 22")
    rows = knowledge_base.surroundings(passage, 12, count_words).split("\n\n")
    assert rows == [f"city town{n}: inhabitants {n * 100}" for n in (19, 20, 21)]
