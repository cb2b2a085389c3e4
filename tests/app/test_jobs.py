"""Ingestion in the background: progress, failure, calling off, and what a process that ends leaves to the next."""

import json
import threading

import pytest

from app.ingestion_jobs import IngestionJobs, JobFile, TooManyJobsError
from retrieval.records import IngestResult
from tests.app.serving import events, question, wait_until

PATH = "/api/v1/jobs"


def send(server, *files, **fields):
    return server.client.post(
        "/api/v1/documents", params={"background": True}, files=[("files", file) for file in files], data=fields
    )


def test_files_go_in_behind_the_reply_and_their_progress_is_told(server):
    text = b"# Okapi\n\nAn okapi named Ottilie lives in the attic.\n"
    response = send(server, ("okapi.md", text), ("blank.md", b" "), ("x.exe", b"x"), collection="jobs")
    assert response.status_code == 202
    path = f"{PATH}/{response.json()['job_id']}"
    assert response.headers["location"] == path
    told = events(server.client.get(f"{path}/events").text)
    assert {name for name, _ in told[:-1]} == {"progress"}
    assert told[-1][0] == "end"
    last = json.loads(told[-2][1])
    assert last == server.client.get(path).json()
    okapi, blank, program = last["files"]
    assert (last["status"], last["collection"]) == ("done", "jobs")
    assert (okapi["status"], okapi["progress"], okapi["num_chunks"], okapi["reason"]) == ("added", 1.0, 1, None)
    assert (blank["status"], program["status"]) == ("failed", "failed")
    assert "no text" in blank["reason"]
    assert server.client.get(f"/api/v1/documents/{okapi['document_id']}").json()["source"] == "okapi.md"
    folder = server.services.settings.data_dir / "jobs" / last["job_id"]
    assert [entry.name for entry in folder.iterdir()] == ["job.json"]
    assert server.client.delete(path).json()["status"] == "done"
    server.client.delete("/api/v1/collections/jobs")


def test_a_job_that_cannot_be_accepted_leaves_nothing(server):
    folder = server.services.settings.data_dir / "jobs"
    before = set(folder.glob("*"))
    assert send(server, ("a.md", b"# A"), collection="a\nb").status_code == 422
    assert server.client.post("/api/v1/documents", params={"background": "perhaps"}).status_code == 422
    assert server.client.post("/api/v1/documents", params={"background": True}, content=b"x").status_code == 422
    assert set(folder.glob("*")) == before


@pytest.mark.parametrize("below", ["", "/events"])
def test_a_job_of_nobody_or_of_somebody_else_is_not_found(server, below):
    jobs = server.services.jobs
    hers = jobs.add(jobs.new_folder(), "ada", "c", [JobFile("a.md", "0.md", "failed", reason="no")])
    for job_id in ("nothing", hers.job_id, "..%2F..%2Fetc"):
        assert server.client.get(f"{PATH}/{job_id}{below}").status_code == 404
    assert server.client.delete(f"{PATH}/{hers.job_id}").status_code == 404


def test_the_queue_tells_the_load_and_that_nobody_waits(server):
    server.post("/chat/invoke", question("hi", "queue", retrieval=False))
    assert server.client.get("/api/v1/queue", params={"session_id": "queue"}).json() == {
        "position": None, "num_running": 0, "num_waiting": 0,
    }  # fmt: skip
    assert server.client.get("/api/v1/queue", params={"session_id": "x" * 1001}).status_code == 422


# ── the jobs by themselves ───────────────────────────────────────────────────────────────────────────────────────────


class Taking:
    """Takes files in when told to; `taken` are their contents."""

    def __init__(self):
        self.taken = []
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def __call__(self, path, name, job, embedded):
        self.begun.set()
        embedded(1, 2)
        self.go_on.wait(30)
        if name == "broken":
            raise RuntimeError("a secret")
        self.taken.append((name, path.read_text(), job.collection, job.user, job.private))
        return IngestResult(str(path), "added", "id", 1, 0, None)


def jobs_over(folder, taking):
    jobs = IngestionJobs(folder, taking)
    jobs.start()
    return jobs


def put(jobs, *names):
    folder = jobs.new_folder()
    for name in names:
        (folder / name).write_text(f"text of {name}")
    return jobs.add(folder, "local", "c", [JobFile(name, name) for name in names], private=True)


def test_what_has_not_begun_can_be_called_off(tmp_path):
    jobs = jobs_over(tmp_path, taking := Taking())
    job = put(jobs, "a", "b")
    assert taking.begun.wait(30)
    assert [(file.status, file.progress) for file in job.files] == [("running", 0.55), ("queued", 0.0)]
    jobs.cancel(job)
    taking.go_on.set()
    wait_until(lambda: job.is_finished)
    assert (job.status, [file.status for file in job.files]) == ("cancelled", ["added", "cancelled"])
    jobs.close()


def test_the_file_at_hand_is_left_at_its_next_batch_when_its_job_is_called_off(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def take(path, name, job, embedded):
        if name == "long":
            embedded(1, 3)
            begun.set()
            assert go_on.wait(30)
        embedded(2, 3)
        embedded(3, 3)
        return IngestResult(str(path), "added", name, 1, 0, None)

    jobs = jobs_over(tmp_path, take)
    called_off = put(jobs, "long")
    assert begun.wait(30)
    jobs.cancel(called_off)
    go_on.set()
    wait_until(lambda: called_off.is_finished)
    assert [(file.status, file.document_id, file.progress) for file in called_off.files] == [("cancelled", None, 0.0)]
    other = put(jobs, "other")
    wait_until(lambda: other.is_finished)
    assert [file.status for file in other.files] == ["added"]
    jobs.close()


def test_an_accepted_job_is_done_by_the_next_process_where_this_one_ends(tmp_path):
    first = jobs_over(tmp_path, stuck := Taking())
    job = put(first, "a", "b")
    assert stuck.begun.wait(30)
    (tmp_path / ("0" * 32)).mkdir()  # an upload that was never complete
    taking = Taking()
    taking.go_on.set()
    second = jobs_over(tmp_path, taking)
    wait_until(lambda: second.get("local", job.job_id).is_finished)
    assert taking.taken == [("a", "text of a", "c", "local", True), ("b", "text of b", "c", "local", True)]
    assert not (tmp_path / ("0" * 32)).exists()
    second.close()
    stuck.go_on.set()
    first.close()


def test_an_unforeseen_fault_fails_the_file_and_its_text_stays_in_the_log(tmp_path):
    jobs = jobs_over(tmp_path, taking := Taking())
    taking.go_on.set()
    job = put(jobs, "broken")
    wait_until(lambda: job.is_finished)
    assert (job.status, job.files[0].status, "secret" in job.files[0].reason) == ("failed", "failed", False)
    jobs.close()


def test_no_more_jobs_are_taken_on_than_may_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("app.ingestion_jobs.MAX_UNFINISHED", 1)
    jobs = jobs_over(tmp_path, taking := Taking())
    put(jobs, "a")
    with pytest.raises(TooManyJobsError):
        jobs.new_folder()
    taking.go_on.set()
    jobs.close()
