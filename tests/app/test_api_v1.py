"""Our own routes: documents, conversations, health, metrics and the front door."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.routes.uploads import safe_name
from tests.app.scripted import ScriptedEngineClient
from tests.app.serving import RunningServer, question, scripted_app

BOUNDARY = "XX"
METRICS = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions", "prompt_tokens",
    "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "request_success", "time_to_first_token_seconds",
    "time_per_output_token_seconds", "e2e_request_latency_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_params_n", "request_params_max_tokens",
)  # fmt: skip


def upload(server, *files, **fields):
    return server.client.post("/api/v1/documents", files=[("files", file) for file in files], data=fields)


def raw_form(*parts: bytes) -> bytes:
    return b"".join(b"--XX\r\n" + part + b"\r\n" for part in parts) + b"--XX--\r\n"


def post_raw(server, body, content_type=f"multipart/form-data; boundary={BOUNDARY}"):
    return server.client.post("/api/v1/documents", content=body, headers={"content-type": content_type})


# ── documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_uploaded_document_is_listed_found_and_deleted(server):
    text = "# Quokkas\n\nA quokka named Zebulon guards the eastern lighthouse.\n"
    (result,) = upload(server, ("quokka.md", text.encode()), collection="animals").json()["results"]
    assert (result["name"], result["status"], result["num_chunks"], result["reason"]) == ("quokka.md", "added", 1, None)
    listed = server.client.get("/api/v1/documents", params={"collection": "animals"}).json()["documents"]
    assert [(entry["document_id"], entry["title"], entry["source"]) for entry in listed] == [
        (result["document_id"], "Quokkas", "quokka.md")
    ]
    reply = server.post("/chat/invoke", question("Who guards the eastern lighthouse?", "quokka")).json()
    assert reply["output"]["sources"][0]["document_id"] == result["document_id"]
    path = f"/api/v1/documents/{result['document_id']}"
    assert [server.client.delete(path).status_code for _ in range(2)] == [204, 404]
    assert server.client.get("/api/v1/documents", params={"collection": "animals"}).json()["documents"] == []


def test_the_same_file_twice_changes_nothing(server):
    file = ("twice.md", b"# Twice\n\nThe same text.\n")
    first, second = (upload(server, file, collection="twice").json()["results"][0] for _ in range(2))
    assert (first["status"], second["status"]) == ("added", "unchanged")
    assert first["document_id"] == second["document_id"]
    server.client.delete(f"/api/v1/documents/{first['document_id']}")


def test_of_two_files_of_one_name_in_one_upload_the_second_is_refused_unless_it_is_the_same(server):
    first, other = ("same.md", b"# First\n\nThe first text.\n"), ("same.md", b"# Other\n\nAnother text.\n")
    results = upload(server, first, other, first, ("next.md", b"A neighbour.\n"), collection="names").json()["results"]
    assert [result["status"] for result in results] == ["added", "failed", "unchanged", "added"]
    assert results[1]["reason"].startswith("another file of this upload has the same name")
    listed = server.client.get("/api/v1/documents", params={"collection": "names"}).json()["documents"]
    assert sorted(entry["title"] for entry in listed) == ["First", "next"]
    for entry in listed:
        server.client.delete(f"/api/v1/documents/{entry['document_id']}")


def test_a_bad_file_is_reported_and_its_neighbours_go_in(server):
    files = [("empty.md", b""), ("good.md", b"# Good\n\nGood text.\n"), ("blank.txt", b" \n\t "), ("odd.xyz", b"what?")]
    response = upload(server, *files, collection="mixed")
    assert response.status_code == 200
    results = response.json()["results"]
    assert [(result["name"], result["status"]) for result in results] == [
        ("empty.md", "failed"),
        ("good.md", "added"),
        ("blank.txt", "failed"),
        ("odd.xyz", "failed"),
    ]
    assert all(result["reason"] for result in results if result["status"] == "failed")
    server.client.delete(f"/api/v1/documents/{results[1]['document_id']}")


@pytest.mark.parametrize(
    "name", ["../escape.md", "/etc/escape.md", "..\\..\\escape.md", "a/b/../escape.md", "C:\\x\\escape.md"]
)
def test_a_name_with_a_path_is_reduced_to_its_last_part_and_writes_nothing_outside(server, name):
    folder = server.services.settings.data_dir
    before = set(folder.parent.rglob("*escape*"))
    part = f'Content-Disposition: form-data; name="files"; filename="{name}"'.encode()
    (result,) = post_raw(server, raw_form(part + b"\r\n\r\n# Escape\n\nText.")).json()["results"]
    assert (result["name"], result["status"]) == ("escape.md", "added")
    assert set(folder.parent.rglob("*escape*")) == before
    assert not list((folder / "uploads").iterdir())
    server.client.delete(f"/api/v1/documents/{result['document_id']}")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a.md", "a.md"),
        ("../a.md", "a.md"),
        ("..", ""),
        (".", ""),
        ("", ""),
        ("a/", ""),
        ("\x00a\n.md", "a.md"),
        ("é ü.pdf", "é ü.pdf"),
    ],
)
def test_safe_names(name, safe):
    assert safe_name(name) == safe


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a'b%22c.txt", "a'b\"c.txt"),
        ("a%0D%0Ab.txt", "ab.txt"),
        ("100%20%25.txt", "100%20%25.txt"),
        ("%2F.txt", "%2F.txt"),
    ],
)
def test_a_name_is_read_as_browsers_write_it_and_no_more_of_it_is_decoded(server, written, name):
    part = f'Content-Disposition: form-data; name="files"; filename="{written}"\r\n\r\nText.'.encode()
    (result,) = post_raw(server, raw_form(part)).json()["results"]
    assert (result["name"], result["status"]) == (name, "added")
    server.client.delete(f"/api/v1/documents/{result['document_id']}")


def test_a_file_without_a_usable_name_fails_by_itself(server):
    part = b'Content-Disposition: form-data; name="files"; filename=".."\r\n\r\ntext'
    (result,) = post_raw(server, raw_form(part)).json()["results"]
    assert (result["status"], "no usable name" in result["reason"]) == ("failed", True)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{}", "application/json"),
        (b"", f"multipart/form-data; boundary={BOUNDARY}"),
        (b"no form at all", f"multipart/form-data; boundary={BOUNDARY}"),
        (
            b'--XX\r\nContent-Disposition: form-data; name="files"; filename="a.md"\r\n\r\ncut',
            "multipart/form-data; boundary=XX",
        ),
        (raw_form(b'Content-Disposition: form-data; name="collection"\r\n\r\nx'), "multipart/form-data; boundary=XX"),
    ],
)
def test_a_body_that_is_no_form_with_files_is_422(server, body, content_type):
    response = post_raw(server, body, content_type)
    assert (response.status_code, response.json()["error"]["field"]) == (422, "files")
    assert not list((server.services.settings.data_dir / "uploads").iterdir())


def test_a_collection_name_that_is_not_allowed_is_422(server):
    assert upload(server, ("a.md", b"# A\n\nText."), collection="a\nb").status_code == 422


def test_a_file_over_the_limit_is_413_with_the_limit_and_leaves_nothing(tmp_path):
    with RunningServer(scripted_app(tmp_path, max_upload_bytes=100_000)) as server:
        server.wait_until_ready()
        response = upload(server, ("big.md", b"x" * 200_000))
        assert (response.status_code, response.json()["error"]["code"]) == (413, "upload_too_large")
        assert "big.md: an upload may have at most 100,000 bytes" in response.json()["error"]["message"]
        assert not list((tmp_path / "uploads").iterdir())


# ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_conversations_are_listed_read_and_deleted(server):
    server.post("/chat/invoke", question("What does TTFT measure?", "read me"))
    entry = server.client.get("/api/v1/conversations").json()["conversations"][0]
    assert (entry["session_id"], entry["title"], entry["num_turns"]) == ("read me", "What does TTFT measure?", 1)
    conversation = server.client.get("/api/v1/conversations/read me").json()
    (turn,) = conversation["turns"]
    assert (conversation["title"], turn["index"], turn["question"]) == (
        "What does TTFT measure?",
        0,
        "What does TTFT measure?",
    )
    assert turn["interrupted"] is False
    assert turn["sources"][0]["title"] == "Latency"
    assert (turn["finish_reason"], turn["feedback"], turn["statistics"]["num_passages"]) == ("stop", None, 2)
    assert [server.client.delete("/api/v1/conversations/read me").status_code for _ in range(2)] == [204, 404]
    assert server.client.get("/api/v1/conversations/read me").status_code == 404


def test_dropping_a_turn_drops_the_later_ones_so_that_it_can_be_asked_again(server):
    for text in ("Say one.", "Say two.", "Say three."):
        server.post("/chat/invoke", question(text, "retry", retrieval=False))
    assert server.client.delete("/api/v1/conversations/retry/turns/1").status_code == 204
    server.post("/chat/invoke", question("Say four.", "retry", retrieval=False))
    turns = server.client.get("/api/v1/conversations/retry").json()["turns"]
    assert [(turn["index"], turn["question"]) for turn in turns] == [(0, "Say one."), (1, "Say four.")]
    assert server.client.delete("/api/v1/conversations/retry/turns/7").status_code == 404
    assert server.client.delete("/api/v1/conversations/retry/turns/x").status_code == 422
    assert server.client.delete("/api/v1/conversations/nobody/turns/0").status_code == 404


def test_a_session_name_with_slashes_dots_and_spaces_is_one_name(tmp_path):
    from urllib.parse import quote

    with RunningServer(scripted_app(tmp_path)) as server:
        server.wait_until_ready()
        for name in ("../../etc/passwd", "a/b", "ü ?#%", "x" * 256):
            assert server.post("/chat/invoke", question("hi", name)).status_code == 200
            path = f"/api/v1/conversations/{quote(name, safe='')}"
            assert server.client.get(path).json()["session_id"] == name
            assert server.client.delete(path).status_code == 204
        assert server.post("/chat/invoke", question("hi", "x" * 257)).status_code == 422


def test_history_is_kept_over_a_restart(tmp_path):
    for number in range(2):
        engine = ScriptedEngineClient()
        with RunningServer(scripted_app(tmp_path, engine)) as server:
            server.wait_until_ready()
            server.post("/chat/invoke", question(f"question {number}"))
    assert [message["role"] for message in engine.requests[0]["messages"]] == ["system", "user", "assistant", "user"]


# ── health, metrics, front door ──────────────────────────────────────────────────────────────────────────────────────


def test_live_and_ready(server):
    assert server.client.get("/v1/health/live").json() == {"status": "live"}
    response = server.client.get("/v1/health/ready")
    assert (response.status_code, response.json()) == (200, {"status": "ready"})
    for path in ("live", "ready"):  # as monitors ask
        response = server.client.head(f"/v1/health/{path}")
        assert (response.status_code, response.content) == (200, b"")


def test_metrics_have_vllms_names_and_count_what_happened(server):
    def read():
        text = server.client.get("/metrics").text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        return {
            name: sum(s.value for s in family.samples if not s.name.endswith(("_created", "_bucket", "_sum")))
            for name, family in families.items()
        }

    before = read()
    server.post(
        "/v1/chat/completions",
        {"model": server.services.model_name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    )
    after = read()
    assert {f"ragstone:{name}" for name in METRICS} <= set(after)
    assert after["ragstone:generation_tokens"] - before["ragstone:generation_tokens"] == 3
    assert after["ragstone:request_success"] - before["ragstone:request_success"] == 1
    assert after["ragstone:time_to_first_token_seconds"] - before["ragstone:time_to_first_token_seconds"] == 1
    assert server.client.get("/metrics").headers["content-type"].startswith("text/plain; version=")


def test_how_answers_stand_to_their_sources_is_counted(server):
    def read():
        text = server.client.get("/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {
            (sample.name.removeprefix("ragstone:grounded_"), *sample.labels.values()): sample.value
            for sample in samples
            if sample.name.startswith("ragstone:grounded_") and sample.name.endswith("_total")
        }

    before = read()
    asked = ("What does TTFT measure?", "Who won the cup in 1954?")
    answers = [server.post("/chat/invoke", question(text, "counted")).json()["output"] for text in asked]
    assert [answer["grounding"]["state"] for answer in answers] == ["answered", "not_found"]
    counted = {key: value - before.get(key, 0) for key, value in read().items()}
    assert counted["answers_total", "strict", "answered"] == 1
    assert counted["answers_total", "strict", "not_found"] == 1
    sentences = [sentence for answer in answers for sentence in answer["grounding"]["sentences"]]
    assert sum(value for key, value in counted.items() if key[0] == "sentences_total") == len(sentences) > 0


def test_the_front_door_leads_to_the_documentation(server):
    response = server.client.get("/", follow_redirects=True)
    assert response.status_code == 200
    assert "Ragstone" in response.text


def test_other_origins_get_no_permission(server):
    headers = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    response = server.client.options("/chat/invoke", headers=headers)
    assert "access-control-allow-origin" not in response.headers
    assert "access-control-allow-origin" not in server.client.get("/v1/models", headers=headers).headers


@pytest.mark.parametrize("path", ["/nothing", "/api/v1/nothing", "/v1/nothing"])
def test_an_unknown_path_is_404_in_the_shape_of_its_neighbours(server, path):
    response = server.client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_what_holds_for_a_question_that_chooses_nothing_is_told(server):
    settings = server.services.settings
    assert server.client.get("/api/v1/options").json() == {
        "defaults": {
            "model": server.services.model_name,
            "temperature": 0.0,
            "top_p": 1.0,
            "max_tokens": settings.max_tokens,
            "memory": "token_budget",
            "num_passages": settings.num_passages,
            "retrieval": True,
        },
        "limits": {"max_input_chars": 20_000, "max_upload_bytes": settings.max_upload_bytes},
    }


def test_the_openapi_document_has_every_route_of_ours(server):
    paths = server.client.get("/openapi.json").json()["paths"]
    ours = {path for path in paths if re.match(r"/(v1|api|metrics)", path)}
    assert ours == {
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/models/{model}",
        "/v1/health/live", "/v1/health/ready", "/v1/metadata", "/v1/version", "/metrics",
        "/api/v1/documents", "/api/v1/documents/{document_id}", "/api/v1/conversations",
        "/api/v1/conversations/{session_id}", "/api/v1/conversations/{session_id}/turns/{index}",
        "/api/v1/conversations/{session_id}/restore", "/api/v1/conversations/{session_id}/export",
        "/v1/ranking", "/api/v1/usage", "/api/v1/turns/{turn_id}", "/api/v1/turns/{turn_id}/support",
        "/api/v1/answers/{job_id}",
        "/api/v1/jobs/{job_id}", "/api/v1/jobs/{job_id}/events", "/api/v1/queue", "/api/v1/feedback",
        "/api/v1/options",
        "/api/v1/collections", "/api/v1/collections/{name}",
        "/api/v1/documents/{document_id}/original", "/api/v1/documents/{document_id}/pages/{number}.png",
        "/api/v1/documents/{document_id}/html", "/api/v1/documents/{document_id}/text",
        "/api/v1/documents/{document_id}/reingest",
    }  # fmt: skip
