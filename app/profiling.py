"""`ragstone profile`: where the time of the engine's steps goes, as a trace and as a table.

The trace is Chrome's format: chrome://tracing and https://ui.perfetto.dev open it. Torch's profiler sees torch's own
operators and a GPU's kernels; the parts of a step are named for it here.
"""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import RagstoneError
from app.settings import Settings

if TYPE_CHECKING:
    from engine import Engine

# Steps before the first one that counts: kernels are compiled and buffers made in them.
WARM_UP_STEPS = 3
# Rows of the table.
MOST_ROWS = 25


class ProfileError(RagstoneError):
    """A trace that cannot be written."""

    code = "profile_failed"


@dataclass(frozen=True)
class Profile:
    """What was measured. `table` has a line for each part and operator, the costliest first."""

    trace: Path
    num_steps: int
    num_prompt_tokens: int
    seconds: float
    table: str

    @property
    def summary(self) -> str:
        """One line about all of it."""
        per_step = 1000 * self.seconds / self.num_steps
        return (
            f"{self.num_steps} steps over {self.num_prompt_tokens:,} prompt tokens in {self.seconds:.3f} s, "
            f"{per_step:.2f} ms each, as traced"
        )


def profile(settings: Settings, prompt: str, *, num_steps: int, trace: Path) -> Profile:
    """Traces the first steps of an answer: of the prompt's, as many as it takes, and then one a token.

    The prefix cache is off, so that the prompt is computed. Raises ProfileError, ModelNotFoundError, EngineError.
    """
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as torch_profile

    from app.engines.in_process import engine_config
    from app.models import resolve
    from engine import Engine

    if not trace.parent.is_dir():
        raise ProfileError(f"there is no folder {trace.parent}: make it, or name another place with --out")
    if trace.is_dir():
        raise ProfileError(f"{trace} is a folder: name a file in it with --out, such as {trace / 'trace.json'}")
    config = engine_config(settings, resolve(settings.model, settings))
    engine = Engine(replace(config, enable_prefix_caching=False))
    is_gpu = engine.runner.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    num_prompt_tokens = _begin(engine, prompt, WARM_UP_STEPS)
    _run(engine, WARM_UP_STEPS, lambda number: nullcontext())
    _end(engine)
    _begin(engine, prompt, num_steps)
    with torch_profile(activities=activities) as profiler, _named_parts(engine):
        started = time.perf_counter()
        done = _run(engine, num_steps, lambda number: record_function(f"step {number}"))
        seconds = time.perf_counter() - started
    _end(engine)
    try:
        profiler.export_chrome_trace(str(trace))
    except (OSError, RuntimeError) as error:
        raise ProfileError(f"{trace} cannot be written: {error}") from None
    order = "self_cuda_time_total" if is_gpu else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=order, row_limit=MOST_ROWS, max_name_column_width=48)
    return Profile(trace, done, num_prompt_tokens, seconds, table)


def _begin(engine: "Engine", prompt: str, num_steps: int) -> int:
    """Queues the prompt; how many tokens it has."""
    from engine import SamplingParams

    token_ids = engine.render_chat([{"role": "user", "content": prompt}])
    max_tokens = max(1, min(num_steps * 16, engine.max_model_len - len(token_ids)))
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    engine.add(engine.make_requests(token_ids, params, request_id="profile"))
    return len(token_ids)


def _run(engine: "Engine", num_steps: int, named: Callable[[int], AbstractContextManager[Any]]) -> int:
    """Takes so many steps, fewer where the answer ends before; how many it took. Raises what a step failed with."""
    done = 0
    while done < num_steps and engine.has_work:
        with named(done):
            deltas = engine.step()
        done += 1
        for delta in deltas:
            if delta.error is not None:
                raise delta.error
    return done


def _end(engine: "Engine") -> None:
    engine.abort("profile")
    while engine.has_work:  # an overlapped step is still under way
        engine.step()


@contextmanager
def _named_parts(engine: "Engine") -> Iterator[None]:
    """Gives the parts of a step their names in the trace, for as long as it lasts."""
    from torch.profiler import record_function

    parts: list[tuple[str, Any, str]] = [
        ("schedule", engine.scheduler, "schedule"),
        ("forward", engine.runner, "run"),
        ("sample", engine.sampler, "sample"),
    ]
    if engine.speculator is not None:
        parts.append(("draft", engine.speculator, "draft"))

    def named(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            with record_function(name):
                return method(*arguments, **options)

        return call

    for name, owner, method in parts:
        setattr(owner, method, named(name, getattr(owner, method)))
    try:
        yield
    finally:
        for _, owner, method in parts:
            delattr(owner, method)  # the class's own is there again
