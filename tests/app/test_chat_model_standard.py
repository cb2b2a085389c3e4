"""LangChain's own tests of a chat model, unit and integration, on the default model.

Off are only kinds of content that a text model cannot take, recorded HTTP traffic (there is none), and what needs
decoding under constraints (tool calls, structured output).
"""

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from app.chat_model import ChatRagstone

MODEL = "smollm2-135m-instruct"


class Properties:
    """What both suites are told."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRagstone

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL, "temperature": 0}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {"temperature": 0, "max_tokens": 12, "timeout": 600, "stop": [], "max_retries": 2}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_tool_choice(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True


class TestUnit(Properties, ChatModelUnitTests):
    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return (
            {"RAGSTONE_MODEL": "a-model", "RAGSTONE_API_KEY": "a-key"},
            {},
            {"model_name": "a-model", "api_key": "a-key"},
        )


class TestIntegration(Properties, ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _override(self, chat_model_path: Any) -> None:
        # The same model by another name, so that one engine serves both.
        self._override_value = str(chat_model_path)

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
        model = ChatRagstone(max_tokens=4, **self.chat_model_params)
        question = "Tell me about the history of the bicycle, in a few words. " * 3
        model.invoke(question)
        if not stream:
            return model.invoke(question)
        chunks = list(model.stream(question))
        total = chunks[0]
        for chunk in chunks[1:]:
            total = total + chunk
        return total
