import json
import subprocess
import sys
from pathlib import Path


def test_the_index_benchmark_runs_small_and_writes_what_it_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.index", "--rows", "2000", "--json", str(tmp_path / "index.json")]
    done = subprocess.run(
        command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=200, check=True
    )
    report = json.loads((tmp_path / "index.json").read_text())
    assert report["rows"] == 2000
    assert report["kind"] in done.stdout
    assert report["kind"].startswith("IVF (89 lists, ")
    assert report["search"]["recall"] >= 0.97
    assert report["filters"]["0.01"]["recall"] == 1.0
    assert report["flat"]["recall"] == 1.0
