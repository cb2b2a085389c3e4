"""LangChain's own tests of a chat model, unit and integration, on the default model.

Off are only kinds of content that a text model cannot take, and recorded HTTP traffic (there is none). Three tests ask
for more than a model of 135 million parameters can do (`WANT_OF_ABILITY`): they run on it and may fail; with
RAGSTONE_TEST_CHAT_MODEL=<a GGUF file of a better model> the suite runs on that one, and they must pass.
"""

import os
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from app.chat_model import ChatRagstone

BETTER_MODEL = os.environ.get("RAGSTONE_TEST_CHAT_MODEL")
MODEL = BETTER_MODEL or "smollm2-135m-instruct"
WANT_OF_ABILITY = pytest.mark.xfail(
    BETTER_MODEL is None,
    reason="asks for more than the default model can do; set RAGSTONE_TEST_CHAT_MODEL to a GGUF file of a better one",
    strict=False,
)


class Properties:
    """What both suites are told."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRagstone

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {"temperature": 0, "max_tokens": 12, "timeout": 600, "stop": [], "max_retries": 2}

    @property
    def has_tool_calling(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def has_structured_output(self) -> bool:
        return True

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True


class TestUnit(Properties, ChatModelUnitTests):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "smollm2-135m-instruct"}  # as the snapshot of a dumped model has it; no model is loaded

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return (
            {"RAGSTONE_MODEL": "a-model", "RAGSTONE_API_KEY": "a-key"},
            {},
            {"model_name": "a-model", "api_key": "a-key"},
        )


class TestIntegration(Properties, ChatModelIntegrationTests):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        # Greedy and without a penalty, a small model repeats a sentence for as long as the schema's string may go on.
        return {"model": MODEL, "temperature": 0, "max_tokens": 160, "frequency_penalty": 2.0}

    @pytest.fixture(autouse=True)
    def _override(self, chat_model_path: Any) -> None:
        # The same model by another name, so that one engine serves both.
        self._override_value = BETTER_MODEL or str(chat_model_path)

    @WANT_OF_ABILITY  # it must write the two keys that the question names, where any JSON object is allowed
    def test_json_mode(self, model: BaseChatModel) -> None:
        super().test_json_mode(model)

    @WANT_OF_ABILITY  # it must see by itself that a tool would help
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)

    @WANT_OF_ABILITY  # it must copy a name in Japanese
    def test_unicode_tool_call_integration(self, model: BaseChatModel, **options: Any) -> None:
        super().test_unicode_tool_call_integration(model, **options)

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return self._override_value

    @property
    def returns_usage_metadata(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:  # type: ignore[override]
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> Any:
        model = ChatRagstone(**{**self.chat_model_params, "max_tokens": 4})
        question = "Tell me about the history of the bicycle, in a few words. " * 3
        model.invoke(question)
        if not stream:
            return model.invoke(question)
        chunks = list(model.stream(question))
        total = chunks[0]
        for chunk in chunks[1:]:
            total = total + chunk
        return total
