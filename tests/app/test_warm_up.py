"""What the first question of a server would else wait for, in a process of its own that has imported nothing before."""

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
from pathlib import Path
from tests.app.serving import RunningServer, question, scripted_app, wait_until
app = scripted_app(Path(sys.argv[1]))
with RunningServer(app) as server:
    server.wait_until_ready()
    wait_until(app.state.loading.done)
    known = set(sys.modules)
    assert server.post("/chat/stream", question("What does TTFT measure?")).status_code == 200
    print(json.dumps(sorted(set(sys.modules) - known)))
"""


def test_the_first_question_loads_no_module_and_no_model_of_languages(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    libraries = {name.split(".")[0] for name in loaded}
    assert libraries & {"app", "engine", "fastapi", "langchain_core", "langserve", "py3langid", "retrieval"} == set()
