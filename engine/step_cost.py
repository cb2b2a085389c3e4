"""How many prompt tokens a step may compute beside answers that are being read: a moving model of what steps cost.

A step's time is that of a plain decode step plus something for each prompt token. The price of a prompt token is
measured, because it depends on the machine, on the weights, and on the context that attention has to read.
"""

from __future__ import annotations

from collections import deque
from statistics import median

# A step with prompt tokens may take this many times as long as a recent plain one, and this many times as long as one
# before the prompts came. Readers are promised 2.5 of the latter at most; the distance to that is for noise.
STRETCH = 1.6
STRETCH_OF_CALM = 2.1
# Plain steps, and prices of a prompt token, that count as recent.
NUM_PLAIN_STEPS = 4
NUM_PRICES = 9
# Mixed steps after which plain ones are made, so that there are recent ones to compare with; and how many.
MAX_MIXED_STEPS = 48
NUM_PROBES = 2
# Rows are computed four at a time, so that fewer prompt tokens cost no less. So many are given even where noise, for
# which few tokens take the blame, makes them look dear, unless the cheapest of the recent steps says that they are.
FEW_TOKENS = 4
# As many plain steps on end mean that nothing is being read any more.
CALM_STEPS = 8
# Where so many times more answers advance than when it was calm, a step takes longer for that alone: after a few mixed
# steps plain ones are made, and theirs is the time to compare with. So it is, when plain ones are due, with fewer.
CROWDED = 1.5
MIXED_STEPS_OF_A_CROWD = 8


class StepCost:
    """Recent step times, and the prompt tokens that they allow.

    `least`: tokens that a step with prompts always gets, so that reading them never stops; `most`: the upper bound,
    which also holds while nothing has been measured.
    """

    def __init__(self, least: int, most: int) -> None:
        self.most = most
        self.least = min(least, most)
        self._plain_steps: deque[float] = deque(maxlen=NUM_PLAIN_STEPS)
        self._calm_s: float | None = None
        self._calm_answers = 0
        self._prices: deque[float] = deque(maxlen=NUM_PRICES)
        self._mixed_steps = 0
        self._plain_run = 0
        self._last_chunk = 0

    @property
    def decode_s(self) -> float | None:
        """Seconds of a recent step without prompt tokens; None before the first.

        The quickest of a few: whatever else the machine does can only add to a step.
        """
        return min(self._plain_steps) if self._plain_steps else None

    @property
    def prompt_token_s(self) -> float | None:
        """Seconds that a prompt token adds to a step; None before the first.

        The median of a few, since noise adds to a step as well, or to the plain one that it is compared with.
        """
        return median(self._prices) if self._prices else None

    def prefill_tokens(self, num_prompts: int = 1, num_answers: int = 1) -> int:
        """Prompt tokens for a step in which answers advance; 0 asks for a plain step, to measure it.

        What a prompt may cost those who read is what it may cost each of them; where more prompts wait to be read than
        answers advance, they may cost as many times more: else a crowd would come in one by one behind a single reader.
        """
        decode_s, price = self.decode_s, self.prompt_token_s
        if price is None and decode_s is None:
            # Either nobody measures (then the bound rules), or these are the first answers of this engine.
            return self.most
        if decode_s is None or self._mixed_steps >= MAX_MIXED_STEPS:
            return 0
        if price is None:
            return self.least
        longest = min(STRETCH * decode_s, STRETCH_OF_CALM * (self._calm_s or decode_s))
        extra = (longest - decode_s) * max(1.0, num_prompts / max(1, num_answers))
        affordable = extra / price if price > 0 else self.most
        # The price of a token was measured at another size of chunk, so growth is by steps.
        allowed = min(affordable, 2 * max(self._last_chunk, self.least), self.most)
        return max(self.least, self._cheap_tokens(longest - decode_s), int(allowed))

    def _cheap_tokens(self, extra_s: float) -> int:
        cheapest = min(self._prices)
        return min(FEW_TOKENS, self.most, int(extra_s / cheapest) if cheapest > 0 else FEW_TOKENS)

    def observe(self, num_prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        """Take a finished step into account; steps without answers say nothing about what readers notice."""
        if num_decoding == 0:
            return
        if num_prompt_tokens == 0:
            if self._mixed_steps >= MAX_MIXED_STEPS and self._plain_run == 0:
                self._plain_steps.clear()  # they are from long ago, and perhaps of another batch
            self._plain_steps.append(seconds)
            self._plain_run += 1
            if self._plain_run >= NUM_PROBES and (self._is_crowded(num_decoding) or self._has_thinned(num_decoding)):
                self._calm_s, self._calm_answers = min(self._plain_steps), num_decoding
            if self._plain_run >= (NUM_PROBES if self._mixed_steps >= MAX_MIXED_STEPS else 1):
                self._mixed_steps = 0
            return
        if self._calm_s is None or self._plain_run >= CALM_STEPS:
            self._calm_s, self._calm_answers = self.decode_s, num_decoding
        self._plain_run = 0
        self._mixed_steps += 1
        if self._mixed_steps >= MIXED_STEPS_OF_A_CROWD and self._is_crowded(num_decoding):
            self._mixed_steps = MAX_MIXED_STEPS
        self._last_chunk = num_prompt_tokens
        self._prices.append(max(0.0, seconds - (self.decode_s or 0.0)) / num_prompt_tokens)

    def _is_crowded(self, num_decoding: int) -> bool:
        return self._calm_s is not None and num_decoding >= CROWDED * self._calm_answers

    def _has_thinned(self, num_decoding: int) -> bool:
        return self._calm_s is not None and CROWDED * num_decoding <= self._calm_answers
