"""Puts questions to a running server through its documented routes, each in a conversation of its own."""

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx

from app import serve as process
from app.errors import EvaluationError
from app.evaluation.records import Case, FoundPassage, Reply, ServerInfo
from app.evaluation.scoring import document_names, folded_name

# Connecting and lists; an answer may take minutes on a slow machine.
SHORT_CALL_S = 15.0
ANSWER_S = 600.0


class Server:
    """A Ragstone server at `url`, from `with` to its end. Raises EvaluationError where it cannot be asked at all."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if not re.match(r"https?://[^/\s]", self.url):
            raise EvaluationError(f"{url!r} is no address of a server: give one such as http://127.0.0.1:8080")
        timeout = httpx.Timeout(ANSWER_S, connect=SHORT_CALL_S)
        try:
            # A proxy for the outside world must not get between: the server is this machine's, or a neighbour.
            key = os.environ.get("RAGSTONE_API_KEY")
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)
        except httpx.InvalidURL as error:
            raise EvaluationError(f"{url!r} is no address of a server: {error}") from None

    def __enter__(self) -> "Server":
        try:
            self._open()
        except BaseException:
            self._http.close()
            raise
        return self

    def _open(self) -> None:
        state = process.readiness(self.url, SHORT_CALL_S)
        if state != process.READY:
            raise EvaluationError(
                f"the server at {self.url} cannot be asked ({state}): start it with `ragstone serve`, or name another "
                "one with --url"
            )
        try:
            model = self._get("/v1/models")["data"][0]["id"]
            # Passages name their document by id; what a person calls it is in the list of documents.
            documents = self._get("/api/v1/documents")["documents"]
            self._documents = {entry["document_id"]: (entry["title"], entry["source"]) for entry in documents}
        except (ValueError, LookupError, TypeError) as error:
            raise EvaluationError(
                f"{self.url} is no Ragstone server, or one of another version: its lists of models and documents read "
                f"otherwise ({type(error).__name__}: {error})"
            ) from None
        self.info = ServerInfo(url=self.url, model=model, num_documents=len(self._documents))

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def unknown_sources(self, cases: Sequence[Case]) -> list[str]:
        """The sources that cases name and that are no documents of this server, in the order of the cases."""
        names = dict.fromkeys(name for case in cases for name in case.sources)
        documents = (document_names(title, source) for title, source in self._documents.values())
        known = frozenset().union(*documents)
        return [name for name in names if folded_name(name) not in known]

    def ask_all(
        self, cases: Sequence[Case], *, parallel: int, collections: Sequence[str] = (), done: Callable[[], object]
    ) -> list[Reply]:
        """Replies in the order of `cases`, `parallel` questions at a time; `done` is called after each."""
        replies = []
        with ThreadPoolExecutor(parallel) as pool:
            for reply in pool.map(lambda case: self.ask(case.question, collections), cases):
                replies.append(reply)
                done()
        return replies

    def ask(self, question: str, collections: Sequence[str] = ()) -> Reply:
        """The answer in a new conversation, which is deleted afterwards. What fails is in the reply's `error`."""
        session_id = f"eval-{uuid.uuid4().hex}"
        configurable: dict[str, Any] = {"session_id": session_id, "collections": list(collections) or None}
        started = time.perf_counter()
        try:
            response = self._http.post(
                "/chat/invoke", json={"input": {"input": question}, "config": {"configurable": configurable}}
            )
            seconds = time.perf_counter() - started
            if response.status_code != 200:
                return Reply(error=_reason(response), seconds=seconds)
            output = response.json()["output"]
            passages = sorted(map(self._passage, output["sources"]), key=lambda passage: -passage.score)
            return Reply(
                answer=_clean(output["answer"]),
                passages=tuple(passages),
                seconds=seconds,
                **checks_of(output.get("grounding")),
            )
        except httpx.HTTPError as error:
            return Reply(error=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - started)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return Reply(error=f"the server's reply is not one of /chat/invoke: {type(error).__name__}: {error}")
        finally:
            with contextlib.suppress(httpx.HTTPError):
                self._http.delete(f"/api/v1/conversations/{quote(session_id)}")

    def _passage(self, source: dict[str, Any]) -> FoundPassage:
        return FoundPassage(
            n=source["n"],
            document_id=source["document_id"],
            title=_clean(source["title"]),
            source=_clean(self._documents.get(source["document_id"], ("", ""))[1]),
            page=source["page"],
            heading=source["heading"] and _clean(source["heading"]),
            text=_clean(source["text"]),
            score=source["score"],
        )

    def _get(self, path: str) -> Any:
        try:
            response = self._http.get(path, timeout=SHORT_CALL_S)
        except httpx.HTTPError as error:
            raise EvaluationError(f"{self.url}{path} does not answer: {type(error).__name__}: {error}") from None
        if response.status_code != 200:
            raise EvaluationError(f"{self.url}{path} answers {_reason(response)}")
        return response.json()


def checks_of(grounding: dict[str, Any] | None) -> dict[str, Any]:
    """What the server's check of an answer says, as fields of a Reply; nothing where it made none."""
    if grounding is None or grounding["state"] == "unchecked":
        return {}
    sentences = grounding["sentences"]
    supported = sum(sentence["supported"] for sentence in sentences) / len(sentences) if sentences else None
    # Only in strict mode does the server keep back an answer that is not in the documents.
    refused = grounding["state"] == "not_found" if grounding["mode"] == "strict" else None
    return {"refused": refused, "supported": supported}


def _reason(response: httpx.Response) -> str:
    try:
        return f"HTTP {response.status_code}: {response.json()['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"


def _clean(text: str) -> str:
    """The text without half characters, which no file could hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
