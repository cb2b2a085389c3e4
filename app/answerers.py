"""Makes the answerers of a server: for each way that a request may go, the chains around the models that are on it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import Runnable

from app import chains
from app.answerer import Answerer, ModelRoom, turn_writer
from app.answering import Answering
from app.chat_model import ChatRagstone
from app.engines.client import MESSAGE_OVERHEAD_TOKENS
from app.engines.routing import Route, RoutedClient
from app.settings import Settings
from app.turn_prompt import CountTokens, PassageRule
from retrieval.records import Passage

if TYPE_CHECKING:
    from retrieval.embeddings import Vectors

# Models with fewer parameters rewrite follow-up questions worse than search can do without them, and their answers are
# held to the sources.
TRUSTED_PARAMETERS = 1_000_000_000


class Answerers:
    """`client_of` gives the models of a route as one client; the rest is the knowledge base's."""

    def __init__(
        self,
        settings: Settings,
        client_of: Callable[[Route], RoutedClient],
        *,
        system_prompt: str,
        search: chains.Search,
        term_weights: Callable[[Collection[str]], Mapping[str, float]],
        embed: "Callable[[Sequence[str]], Vectors]",
        surroundings: Callable[[Passage, int, CountTokens], str],
    ) -> None:
        self.passages = PassageRule(settings.num_passages, settings.max_passage_tokens, settings.min_passage_score)
        self._settings = settings
        self._client_of = client_of
        self._system_prompt = system_prompt
        self._search = search
        self._term_weights = term_weights
        self._embed = embed
        self._surroundings = surroundings
        self._made: dict[Route, Answerer] = {}

    def of(self, route: Route) -> Answerer:
        """The answerer of a route. Blocks where its first model has to be loaded for that."""
        if (made := self._made.get(route)) is not None:
            return made
        client = self._client_of(route)
        made = self._make(client, route.name)
        # How much room there is, a server that does not answer could not tell: it is asked again next time.
        if client.is_whole and client.candidates[0].backend.health()[0] == "ready":
            self._made[route] = made
        return made

    def over(self, client: Any, instructions: str, options: Mapping[str, Any]) -> Answerer:
        """The answerer of a client (a RoutedClient, or one around it) with more instructions and options of its own."""
        route: Route = client.route
        system_prompt = "\n\n".join(part for part in (self._system_prompt, instructions) if part)
        return replace(
            self.of(route),
            answer=chains.answers_of(self._model(client, route.name), system_prompt, options),
            room=self._room(client, system_prompt, options.get("max_tokens")),
        )

    def model(self, route: Route) -> ChatRagstone:
        """The models of a route as a LangChain model."""
        return self._model(self._client_of(route), route.name)

    def _make(self, client: RoutedClient, name: str) -> Answerer:
        settings, model = self._settings, self._model(client, name)
        count_tokens: CountTokens = client.count_tokens
        answering = self._answering(client, name)

        def widen(passage: Passage, max_tokens: int) -> str:
            return self._surroundings(passage, max_tokens, count_tokens)

        return Answerer(
            retrieval=chains.retrieval_chain(
                self._condenser(model, client),
                self._search,
                turn_writer(self.passages, count_tokens, answering, widen),
            ),
            answer=chains.answers_of(model, self._system_prompt),
            room=self._room(client, self._system_prompt),
            count_tokens=count_tokens,
            answering=answering,
            is_weak=self._weakness(client, answering),
            settings={
                "model": name,
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "max_tokens": settings.max_tokens,
                "memory": settings.memory_kind,
                "num_passages": settings.num_passages,
                "grounding": answering.mode if answering else "off",
            },
        )

    def _model(self, client: Any, name: str) -> ChatRagstone:
        settings = self._settings
        return ChatRagstone(
            model=name,
            client=client,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            repetition_penalty=settings.repetition_penalty,
            frequency_penalty=settings.frequency_penalty,
            seed=settings.seed,
            max_tokens=settings.max_tokens,
            timeout=settings.request_timeout_s,
        )

    def _room(self, client: Any, system_prompt: str, max_tokens: int | None = None) -> ModelRoom:
        return ModelRoom(
            max_model_len=client.max_model_len,
            max_tokens=self._settings.max_tokens if max_tokens is None else max_tokens,
            system_tokens=client.count_tokens(system_prompt) + MESSAGE_OVERHEAD_TOKENS,
        )

    def _condenser(self, model: ChatRagstone, client: Any) -> Runnable[dict[str, Any], list[str]]:
        if not self._settings.condense_question:
            return chains.no_condensing()
        if client.num_parameters < TRUSTED_PARAMETERS:
            return chains.condense_by_context()
        return chains.condense_by_model(model, self._system_prompt)

    def _weakness(self, client: RoutedClient, answering: Answering | None) -> Callable[[str], bool] | None:
        """Small models may step in for one that is trusted; what they write is not."""
        if self._settings.grounding != "auto" or answering is None or answering.mode == "strict":
            return None
        if len(client.candidates) == 1:
            return None
        clients = {candidate.name: candidate.backend.client for candidate in client.candidates}
        return lambda name: clients[name].num_parameters < TRUSTED_PARAMETERS

    def _answering(self, client: Any, name: str) -> Answering | None:
        mode = self._settings.grounding
        if mode == "auto":
            mode = "strict" if client.num_parameters < TRUSTED_PARAMETERS else "mark"
        return None if mode == "off" else Answering(mode, self._term_weights, self._embed, name)
