"""A chain as LangServe's routes run it: there before its models are, and a few questions of a batch at a time."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list, patch_config
from langchain_core.runnables.utils import ConfigurableFieldSpec

from app.limits import places_for
from app.services import Services

# LangServe itself names every run after its path; a name of the client's travels past it under this key.
RUN_NAME = "__run_name"


class Served(Runnable[dict[str, Any], Any]):
    """A chain that is built later: its types are known when routes are made, itself when the models are loaded."""

    def __init__(
        self,
        services: Services,
        chain: Callable[[], Runnable[dict[str, Any], Any]],
        input_type: type,
        output_type: type,
        specs: list[ConfigurableFieldSpec],
    ) -> None:
        self._services = services
        self._chain = chain
        self._input_type = input_type
        self._output_type = output_type
        self._specs = specs

    @property
    def InputType(self) -> type:
        return self._input_type

    @property
    def OutputType(self) -> type:
        return self._output_type

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        return self._specs

    def invoke(self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._chain().invoke(input, _named(config), **kwargs)

    async def ainvoke(self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._chain().ainvoke(input, _named(config), **kwargs)

    async def abatch(
        self,
        inputs: list[dict[str, Any]],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Answers as many at a time as leave room for others, and as the tenant may have under way."""
        at_once = places_for(self._services.questions_at_once)
        configs = [patch_config(one, max_concurrency=at_once) for one in get_config_list(config, len(inputs))]
        return await super().abatch(inputs, configs, return_exceptions=return_exceptions, **kwargs)

    async def astream(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        async with aclosing(self._chain().astream(input, _named(config), **kwargs)) as stream:  # type: ignore[type-var]
            async for chunk in stream:
                yield chunk


def _named(config: RunnableConfig | None) -> RunnableConfig | None:
    """The config with the run's name that the client has chosen."""
    name = (config or {}).get("configurable", {}).get(RUN_NAME)
    return {**config, "run_name": name} if config and name else config
