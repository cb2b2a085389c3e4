"""Which earlier turns the model is shown, and how much room is left for them.

Pure arithmetic on token counts: reads no history, renders no prompt. The rule favours the engine's prefix cache: turns
stay where they are until the budget is exceeded, and then whole oldest turns go in one block, so that most turns only
append to the prompt that the cache already holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.history import Turn

MemoryKind = Literal["buffer", "window", "token_budget"]

# After trimming, prompt and history take at most this share of what they may take, so that trimming is rare.
TRIM_TO = 0.6


@dataclass(frozen=True)
class MemoryRule:
    """`buffer`: all turns that fit the model; `window`: the last `turns`; `token_budget`: at most `tokens` of them."""

    kind: MemoryKind = "buffer"
    turns: int = 6
    tokens: int = 2048

    def first_turn(self, turns: Sequence[Turn], *, start: int, room: int, used: int) -> int:
        """Index into `turns` of the first one that the model is shown.

        Args:
            turns: all turns of the conversation, oldest first.
            start: the answer of the last time; turns before it stay out of sight.
            room: tokens that system prompt, history and question may take together.
            used: tokens of system prompt and question, passages included.
        """
        start = min(start, len(turns))
        if self.kind == "window":
            start = max(start, len(turns) - self.turns)
        limit, target = room - used, int(TRIM_TO * room) - used
        if self.kind == "token_budget":
            limit, target = min(limit, self.tokens), min(target, int(TRIM_TO * self.tokens))
        sizes = [turn.num_tokens for turn in turns]
        if sum(sizes[start:]) <= limit:
            return start
        while start < len(turns) and sum(sizes[start:]) > target:
            start += 1
        return start
