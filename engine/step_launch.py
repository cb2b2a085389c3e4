"""A step between its plan and its tokens: launched on the device, and perhaps followed by the next one.

With `EngineConfig.overlap_scheduling` the step behind is planned and launched while one still runs, so that a GPU does
not wait for the host between two steps (as vLLM's asynchronous scheduling and SGLang's overlap scheduler do):

    host    launch N | launch N+1 | collect N | launch N+2 | collect N+1 …
    device           | N ........ | N+1 .................. | N+2 …

A request of which N chooses a token has it *awaited* in N+1: counted, and looked up by the device in what N has chosen.
That it has ended with N is seen one step late. Then its row of N+1 is for nothing, and its blocks stay held until N+1
is collected. Outside of `Engine.step` nothing is ever awaited: N is collected before it returns, whatever follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.choices import Choices
from engine.errors import StepAbandonedError, StepFailedError
from engine.model_runner import ModelRunner
from engine.request import Request, RequestStatus
from engine.sampler import Sampler
from engine.scheduler import Scheduler, StepPlan
from engine.speculation import Speculator

log = logging.getLogger(__name__)


@dataclass
class LaunchedStep:
    """
    Attributes:
        complete: requests of which it chooses tokens, in plan order.
        choices: of those; None if it failed (`error`) or was abandoned.
        ended: requests that have ended since; their blocks are held until it is collected.
        is_counted: whether its tokens count as computed.
    """

    plan: StepPlan
    complete: list[Request] = field(default_factory=list)
    choices: Choices | None = None
    error: StepFailedError | None = None
    ended: list[Request] = field(default_factory=list)
    is_counted: bool = False

    @property
    def requests(self) -> list[Request]:
        """Those that have not ended since."""
        return [request for request in self.plan.requests if request.status is not RequestStatus.FINISHED]

    def count(self) -> None:
        """Count its tokens as computed, once: what is launched from now on comes behind them on the device."""
        if self.is_counted:
            return
        self.is_counted = True
        for request in self.requests:
            # Drafts count once they are accepted; until then their blocks must not be found by anybody.
            request.num_computed += self.plan.num_tokens[request.key] - len(request.draft_token_ids)
            request.check()


class StepLauncher:
    """Brings planned steps onto the device."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, sampler: Sampler, *, overlaps: bool) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.sampler = sampler
        self.overlaps = overlaps

    def launch(
        self,
        plan: StepPlan,
        speculator: Speculator | None,
        is_abandoned: Callable[[], bool],
        behind: LaunchedStep | None = None,
    ) -> LaunchedStep:
        """Draft, compute, sample, as far as that does not wait for the device. What goes wrong is the step's `error`.

        behind: the step that is still on the device, where there is one.
        """
        chosen = behind.choices if behind is not None else None
        try:
            with self.runner.on_device():
                if speculator is not None:
                    speculator.draft(plan, self.scheduler)
                _prepare_masks(plan)
                complete, logits = self.runner.run(plan, is_abandoned, chosen)
                return LaunchedStep(plan, complete, self.sampler.sample(complete, logits, chosen))
        except StepAbandonedError:
            # Nothing has been counted or published, so the requests stand as they stood until their abort takes them.
            for request in plan.requests:
                request.draft_token_ids = []
            return LaunchedStep(plan)
        except Exception as error:
            log.exception("step failed: requests=%d", len(plan.requests))
            return LaunchedStep(plan, error=StepFailedError.because(error))

    def plan_behind(self, step: LaunchedStep, speculator: Speculator | None) -> StepPlan | None:
        """The plan of the step that follows, with tokens of `step` awaited; None if its tokens must be known first.

        They must be known where the host chooses any of them (`Sampler.chooses_on_device`), where drafts are verified
        or may be made for the next step, and where that step would have to preempt.
        """
        if not self.overlaps or step.choices is None or any(r.draft_token_ids for r in step.complete):
            return None
        complete = [request for request in step.complete if request.status is not RequestStatus.FINISHED]
        if not all(self.sampler.chooses_on_device(request) for request in complete):
            return None
        going_on = [request for request in complete if request.num_output_tokens + 1 < request.max_tokens]
        if speculator is not None and len(going_on) < speculator.max_rows:
            return None
        step.count()
        for request in going_on:
            request.num_awaited = 1
        if not self.scheduler.can_advance_all:
            return None
        plan = self.scheduler.schedule()
        assert not plan.preempted, "there was room for all that run"
        return plan


def _prepare_masks(plan: StepPlan) -> None:
    """Have the masks computed, beside the forward pass, of the requests that this step yields tokens for."""
    for request, num_tokens in plan:
        drafts = request.draft_token_ids
        if request.grammar is not None and num_tokens - len(drafts) == request.num_missing:
            request.grammar.prepare(drafts)
