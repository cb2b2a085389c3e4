"""The client for any OpenAI-compatible server: vLLM, NIM, Ollama, TensorRT-LLM, or somebody's API.

It asks for /chat/completions, /completions and /models, and for nothing else. Closing a stream closes its connection,
which is how such servers are told to stop.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import httpx
import orjson

from app.engines.backend_errors import BackendError, BackendTimeoutError, BackendUnreachableError, refusal
from app.engines.client import MESSAGE_OVERHEAD_TOKENS, RequestTimes
from app.engines.http_client import CONNECT_S, DeltaReader, HttpEngineClient
from app.engines.openai_body import chat_body, text_body
from app.engines.openai_chunks import ChunkReader
from app.engines.request import EngineRequest
from app.messages import Message
from engine.errors import EngineError, UnsupportedParameterError

# Of a server that does not say how much its model takes.
UNTOLD_MODEL_LEN = 8192
# A model whose size nobody tells is taken for one that may be trusted to write (`app/services.py`).
UNTOLD_PARAMETERS = 7_000_000_000
# A token has at least so many bytes of UTF-8 on average: four to five letters, or one character of an Asian script.
BYTES_PER_TOKEN = 3


class OpenAIClient(HttpEngineClient):
    """`model` of the server at `url`, served here as `model_name`.

    `url` is the API's root, with its /v1 (which is added where there is no path). `key_env` names the environment
    variable that `api_key` came from, for messages. `max_model_len` and `num_parameters` are asked for where they are
    not given, and else assumed.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        model_name: str | None = None,
        api_key: str | None = None,
        key_env: str | None = None,
        max_model_len: int | None = None,
        num_parameters: int | None = None,
        extra_fields: Collection[str] = (),
        silence_s: float = 60.0,
        takes_private: bool = True,
        on_end: Callable[[RequestTimes], None] | None = None,
    ) -> None:
        root = httpx.URL(url)
        super().__init__(
            str(root).rstrip("/") if root.path.strip("/") else f"{str(root).rstrip('/')}/v1",
            headers={} if not api_key else {"Authorization": f"Bearer {api_key}"},
            silence_s=silence_s,
            takes_private=takes_private,
            on_end=on_end,
        )
        self._model = model
        self._name = model_name or model
        self._key_env = key_env
        self._max_model_len = max_model_len
        self._num_parameters = num_parameters
        self._extra_fields = frozenset(extra_fields)
        self._entry: Mapping[str, Any] | None = None

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def max_model_len(self) -> int:
        return self._max_model_len or int(self._told.get("max_model_len") or UNTOLD_MODEL_LEN)

    @property
    def num_parameters(self) -> int:
        return self._num_parameters or int(self._told.get("num_parameters") or UNTOLD_PARAMETERS)

    @property
    def _told(self) -> Mapping[str, Any]:
        """What the server's list says of the model; nothing where it has none, or cannot be asked at the moment."""
        if self._entry is None:
            try:
                entries = self._list()
            except EngineError:
                return {}
            self._entry = next((entry for entry in entries or () if entry.get("id") == self._model), {})
        return self._entry

    def count_tokens(self, text: str) -> int:
        """An estimate that is rather too high than too low: no route for it is common to all servers."""
        return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        self._tell_no_tokens()

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        self._tell_no_tokens()

    def decode(self, token_ids: Sequence[int]) -> str:
        self._tell_no_tokens()

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        self._tell_no_tokens()

    def pin_system_prompt(self, text: str) -> int:
        """Nothing: what such a server keeps in its cache is its own business."""
        return 0

    def check_health(self) -> str:
        """'ready' where the server lists the model, or has no list; else why not."""
        try:
            entries = self._list()
        except EngineError as error:
            return str(error)
        names = [str(entry.get("id")) for entry in entries or ()]
        if entries is None or self._model in names:
            return "ready"
        return f"the server at {self.url} does not have the model {self._model!r}; it has {', '.join(names) or 'none'}"

    def _list(self) -> list[dict[str, Any]] | None:
        """The server's models; None where it does not list them. Raises EngineError."""
        try:
            response = self._sync.get("/models", timeout=CONNECT_S)
            if response.status_code in (404, 405, 501):
                return None
            if response.status_code != 200:
                raise self._refusal(response)
            body = response.json()
            return [entry for entry in body.get("data") or () if isinstance(entry, dict)]
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        except (ValueError, AttributeError):
            raise BackendError(f"the server at {self.url} is none of OpenAI's kind: its /models is no list") from None

    def _written(self, request: EngineRequest) -> tuple[str, bytes, DeltaReader]:
        is_chat = request.prompt is None
        body = (chat_body if is_chat else text_body)(request, self._model, self._extra_fields)
        reader = ChunkReader(request, self._estimate(request), self.url)
        return "/chat/completions" if is_chat else "/completions", orjson.dumps(body), reader

    def _estimate(self, request: EngineRequest) -> int:
        if request.prompt is not None:
            return self.count_tokens(request.prompt) if isinstance(request.prompt, str) else len(request.prompt)
        texts = [message["content"] for message in request.messages]
        return sum(self.count_tokens(text) + MESSAGE_OVERHEAD_TOKENS for text in texts)

    def _refusal(self, response: httpx.Response) -> EngineError:
        return refusal(response, self.url, self._model, self._key_env)

    def _unreachable(self, error: Exception) -> BackendError:
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return BackendTimeoutError(
                f"the server at {self.url} has said nothing for {self._silence_s:g} s: try again, or give it more time "
                "(timeout_s)"
            )
        reason = str(error) or type(error).__name__
        return BackendUnreachableError(f"the server at {self.url} does not answer ({reason}): start it, or try again")

    def _broken_off(self) -> BackendError:
        return BackendUnreachableError(f"the server at {self.url} broke off in the middle of the answer; try again")

    def _tell_no_tokens(self) -> NoReturn:
        raise UnsupportedParameterError(
            "model", f"the tokens of {self._name!r} are known to its server only: ask for a model that runs here"
        )
