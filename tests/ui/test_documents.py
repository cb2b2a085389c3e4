"""The document panel: one result a file, and temporary copies that do not stay."""

from pathlib import Path

from tests.ui.fake_api import FakeApi
from ui.client import ApiClient
from ui.documents import Library, UploadStep


def temporary_copy(folder: Path, name: str, text: str) -> Path:
    """A file as Gradio leaves it: alone in a folder of its own."""
    path = folder / name.replace(".", "_") / name
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return path


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def steps_of(library: Library, paths: list[Path]) -> list[UploadStep]:
    return [step async for step in library.upload(paths)]


async def test_each_file_has_its_own_result_and_a_bad_one_stops_no_other(
    client: ApiClient, api: FakeApi, tmp_path: Path
) -> None:
    paths = [temporary_copy(tmp_path, *file) for file in (("a.md", "text"), ("empty.md", ""), ("b.md", "text"))]
    steps = await steps_of(Library(client), paths)
    assert len(steps) == 4
    assert "a.md</b> <span>being read" in steps[0].results
    assert "Added: 1 passage" in steps[-1].results
    assert "Not added: the file is empty" in steps[-1].results
    assert [step.documents is None for step in steps] == [True, True, True, False]
    assert list(api.documents) == ["a.md", "b.md"]


async def test_temporary_copies_are_deleted(client: ApiClient, tmp_path: Path) -> None:
    paths = [temporary_copy(tmp_path, "a.md", "text"), temporary_copy(tmp_path, "empty.md", "")]
    await steps_of(Library(client), paths)
    assert left_in(tmp_path) == []


async def test_temporary_copies_are_deleted_when_the_tab_is_closed(client: ApiClient, tmp_path: Path) -> None:
    steps = Library(client).upload([temporary_copy(tmp_path, "a.md", "text")])
    await anext(steps)
    await steps.aclose()
    assert left_in(tmp_path) == []


async def test_unreachable_server_is_a_result_of_the_file(tmp_path: Path) -> None:
    client = ApiClient("http://127.0.0.1:9")
    steps = await steps_of(Library(client), [temporary_copy(tmp_path, "a.md", "text")])
    assert "Not added: The server at http://127.0.0.1:9 cannot be reached" in steps[-1].results
    assert "cannot be reached" in (steps[-1].documents or "")
    await client.aclose()


async def test_removed_document_leaves_the_list(client: ApiClient, api: FakeApi, tmp_path: Path) -> None:
    library = Library(client)
    await steps_of(library, [temporary_copy(tmp_path, "a.md", "text")])
    assert 'aria-label="Remove a.md"' in await library.listing()
    assert "No documents yet" in await library.remove("a.md")
    assert api.documents == {}
