"""How many prompt tokens a step may compute beside answers that are being read: a moving model of what steps cost.

A step's time is that of a plain decode step plus something for each prompt token. The price of a prompt token is
measured, because it depends on the machine, on the weights, and on the context that attention has to read.
"""

from __future__ import annotations

from collections import deque
from statistics import median

# A step with prompt tokens may take this many times as long as a plain one. Readers are promised 2.5 at most; the
# distance to that is for noise.
STRETCH = 1.8
# Weight of the newest price in its moving average, and plain steps whose median is the recent one.
NEWEST = 0.25
NUM_PLAIN_STEPS = 8
# Mixed steps after which one plain step is made, so that there is a recent one to compare with.
MAX_MIXED_STEPS = 64


class StepCost:
    """Recent step times, and the prompt tokens that they allow.

    `least`: tokens that a step with prompts always gets, so that reading them never stops; `most`: the upper bound,
    which also holds while nothing has been measured.
    """

    def __init__(self, least: int, most: int) -> None:
        self.most = most
        self.least = min(least, most)
        self._plain_steps: deque[float] = deque(maxlen=NUM_PLAIN_STEPS)
        self.prompt_token_s: float | None = None
        self._mixed_steps = 0
        self._last_chunk = 0

    @property
    def decode_s(self) -> float | None:
        """Seconds of a recent step without prompt tokens; None before the first. One slow step does not move it."""
        return median(self._plain_steps) if self._plain_steps else None

    def prefill_tokens(self) -> int:
        """Prompt tokens for a step in which answers advance; 0 asks for a plain step, to measure it."""
        decode_s = self.decode_s
        if self.prompt_token_s is None and decode_s is None:
            # Either nobody measures (then the bound rules), or these are the first answers of this engine.
            return self.most
        if decode_s is None or self._mixed_steps >= MAX_MIXED_STEPS:
            return 0
        if self.prompt_token_s is None:
            return self.least
        affordable = decode_s * (STRETCH - 1) / self.prompt_token_s if self.prompt_token_s > 0 else self.most
        # The price of a token was measured at another size of chunk, so growth is by steps.
        allowed = min(affordable, 2 * max(self._last_chunk, self.least), self.most)
        return max(self.least, int(allowed))

    def observe(self, num_prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        """Take a finished step into account; steps without answers say nothing about what readers notice."""
        if num_decoding == 0:
            return
        if num_prompt_tokens == 0:
            if self._mixed_steps >= MAX_MIXED_STEPS:
                self._plain_steps.clear()  # they are from long ago, and perhaps of another batch
            self._plain_steps.append(seconds)
            self._mixed_steps = 0
            return
        self._mixed_steps += 1
        self._last_chunk = num_prompt_tokens
        price = max(0.0, seconds - (self.decode_s or 0.0)) / num_prompt_tokens
        known = self.prompt_token_s
        self.prompt_token_s = price if known is None else known + NEWEST * (price - known)
