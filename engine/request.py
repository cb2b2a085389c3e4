"""A request as arithmetic on three numbers, and nothing that schedules, computes or stores."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.detokenizer import Detokenizer
from engine.sampling_params import SamplingParams

# Classes of requests, the most urgent first.
PRIORITIES = ("interactive", "normal", "batch", "background")


if TYPE_CHECKING:
    from engine.grammar import Grammar


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """One sequence: a prompt, and the answer as far as it has been generated.

        tokens      [ prompt ............................ | answer ........ | drafts .. ]
        0 ── num_cached ── num_computed ───────────────────────────── num_tokens

    Tokens before `num_cached` came from the prefix cache, those before `num_computed` have keys and values in the
    pool, and a step is given some of the `num_tokens - num_computed` that are missing. There is no prefill phase and
    no decode phase.

    `draft_token_ids` are proposals for the tokens that come next. They live from the plan of a step to its end, are
    computed in it behind the missing tokens, and become tokens only as the sampler chooses the same.

    `num_awaited` is 1 while a step is planned behind one whose token only the device knows yet: that token counts among
    `num_tokens` and is not among `token_ids`.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        max_tokens: int,
        detokenizer: Detokenizer,
        *,
        index: int = 0,
        tenant: str = "",
        pins_prefix: bool = False,
        grammar: Grammar | None = None,
        priority: str = "normal",
        deadline_s: float | None = None,
    ) -> None:
        self.request_id = request_id
        self.index = index
        self.tenant = tenant
        self.pins_prefix = pins_prefix
        self.priority = priority
        self.deadline_s = deadline_s
        # When it was queued, on the scheduler's clock, and as which one. Both are the scheduler's to set.
        self.arrived_s = 0.0
        self.arrival = 0
        self.params = params
        self.max_tokens = max_tokens
        self.detokenizer = detokenizer
        seed = params.seed if params.seed is not None else secrets.randbits(62)
        # The answers of one request are different draws of one seed.
        self.seed = seed + index * 0x9E3779B97F4A7C15
        self.token_ids = list(prompt_token_ids)
        self.draft_token_ids: list[int] = []
        self.num_awaited = 0
        self.grammar = grammar
        self.num_prompt_tokens = len(self.token_ids)
        self.num_cached = 0
        # Tokens of the prompt served from the cache at the first admission; a preemption does not change it.
        self.num_prefix_tokens = 0
        self.num_computed = 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_published = 0
        self.status = RequestStatus.WAITING
        self.num_preemptions = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    @property
    def key(self) -> tuple[str, int]:
        return (self.request_id, self.index)

    @property
    def rank(self) -> int:
        """0 for the most urgent class."""
        return PRIORITIES.index(self.priority)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_awaited

    @property
    def num_missing(self) -> int:
        """Tokens, drafts not counted, whose keys and values are not in the pool yet."""
        return self.num_tokens - self.num_computed

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest token is missing, so that the next step yields a token."""
        return self.num_missing == 1 and self.num_output_tokens > 0

    def ids_between(self, start: int, end: int) -> list[int]:
        """Token ids of the positions [start, end), which may reach into the drafts; 0 for the awaited one."""
        ids = (self.token_ids + [0] * self.num_awaited if self.num_awaited else self.token_ids)[start:end]
        return ids + self.draft_token_ids[: end - self.num_tokens] if end > self.num_tokens else ids

    def append(self, token_id: int) -> None:
        """Take the token that was chosen after the newest one."""
        self.token_ids.append(token_id)
        if self.grammar is not None:
            self.grammar.advance(token_id)

    def check(self) -> None:
        """Assert the invariant of the class docstring."""
        assert 0 <= self.num_cached <= self.num_computed <= self.num_tokens, (
            f"request {self.request_id}: expected num_cached <= num_computed <= num_tokens, "
            f"got {self.num_cached}, {self.num_computed}, {self.num_tokens}"
        )
