"""A conversation that its client carries along, as OpenAI's protocol has it: earlier turns are given, none are kept."""

from collections.abc import Sequence

from langchain_core.messages import AIMessage

from app.errors import RequestError
from app.history import Conversation, ConversationStore, Feedback, Turn, TurnResult
from app.messages import Message, merge_neighbours


class GivenTurns(ConversationStore):
    """A store that holds the given turns, whosever they are and whatever they are called, and forgets what is added."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = list(turns)

    def conversations(
        self, user: str, *, query: str = "", limit: int | None = None, offset: int = 0
    ) -> list[Conversation]:
        return []

    def conversation(self, user: str, session_id: str) -> Conversation | None:
        return None

    def turns(self, user: str, session_id: str) -> list[Turn]:
        return list(self._turns)

    def turn(self, user: str, turn_id: str) -> tuple[str, Turn] | None:
        return None

    def begin_turn(self, user: str, session_id: str, question: str, *, turn_id: str | None = None) -> int:
        return len(self._turns)

    def note_progress(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        pass

    def finish_turn(self, user: str, session_id: str, index: int, result: TurnResult) -> None:
        pass

    def set_feedback(self, user: str, session_id: str, index: int, feedback: Feedback | None) -> bool:
        return False

    def rated_turns(self, user: str) -> list[tuple[str, Turn]]:
        return []

    def rename(self, user: str, session_id: str, title: str) -> bool:
        return False

    def set_window_start(self, user: str, session_id: str, index: int) -> None:
        pass

    def truncate(self, user: str, session_id: str, index: int) -> bool:
        return False

    def delete(self, user: str, session_id: str) -> bool:
        return False

    def restore(self, user: str, session_id: str) -> bool:
        return False

    def close(self) -> None:
        pass


def split(messages: Sequence[Message]) -> tuple[str, list[Turn], str]:
    """Instructions, earlier turns and the question that `messages` hold.

    Raises RequestError for messages of tools, and unless the last one is a question.
    """
    for message in messages:
        if message["role"] == "tool" or "tool_calls" in message:
            raise RequestError(
                "messages of tools mean nothing to a model that answers from documents: leave them out, or ask the "
                "model alone",
                field="messages",
            )
    instructions = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    spoken = merge_neighbours(message for message in messages if message["role"] != "system")
    if not spoken or spoken[-1]["role"] != "user" or not spoken[-1]["content"].strip():
        raise RequestError("the last message must be the user's question, and not empty", field="messages")
    turns: list[Turn] = []
    for earlier, message in zip([None, *spoken], spoken[:-1], strict=False):
        if message["role"] == "user":
            continue
        if earlier is None:  # the assistant spoke first
            turns.append(Turn(len(turns), "", messages=(AIMessage(message["content"]),)))
        else:
            turns.append(Turn(len(turns), earlier["content"], answer=message["content"]))
    return instructions, turns, spoken[-1]["content"]
