"""Runs one Jinja template that came with a model: sandboxed, with limits on time, memory and output.

The limits stop accidents and plain attacks (endless loops, gigantic strings), not a determined author: a model is still
something to get from a source one trusts. What goes in, and how the text that comes out becomes tokens, is
`engine.chat_template`'s part.

The environment is the one that transformers gives chat templates (trim_blocks, lstrip_blocks, loop controls, `tojson`
without HTML escapes, `raise_exception`, `strftime_now`, the `generation` tag), because templates are written for it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from engine.errors import ChatTemplateError

TIME_LIMIT_S = 20.0
MAX_LOOP_ITEMS = 200_000  # that all calls of range() may give in one rendering
MAX_REPEATED_CHARS = 1_000_000  # length of one repeated string or list
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_FORMAT_WIDTH = re.compile(r"\d{5,}|\*|:[^{}]*\{")  # of a width that is long, or given by an argument


class TemplateRefusal(Exception):
    """The template raised, by itself (`raise_exception`) or by using something the messages lack."""


class TemplateLimitError(ChatTemplateError):
    """The template went over a limit: it is broken or hostile, so another arrangement of the messages is no help."""


@dataclass
class _Run:
    """What one rendering may still use. `verbatim` are characters that JSON escapes leave alone."""

    deadline: float
    loop_items: int
    verbatim: Collection[str]


_run: ContextVar[_Run | None] = ContextVar("template_run", default=None)


def _tick(loop_items: int = 0) -> None:
    run = _run.get()
    if run is None:
        return
    run.loop_items -= loop_items
    if run.loop_items < 0:
        raise TemplateLimitError(f"the model's chat template loops over more than {MAX_LOOP_ITEMS:,} numbers")
    if time.monotonic() > run.deadline:
        raise TemplateLimitError(f"the model's chat template runs for more than {TIME_LIMIT_S:.0f} s")


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    _tick(loop_items=len(numbers))
    return numbers


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if not ensure_ascii:
        return text
    run = _run.get()
    verbatim = run.verbatim if run is not None else ()
    return re.sub(r"[^\x00-~]", lambda m: m.group() if m.group() in verbatim else json.dumps(m.group())[1:-1], text)


def _format(text: str, *args: Any, **kwargs: Any) -> str:
    _check_format(str(text))
    return jinja2.filters.do_format(text, *args, **kwargs)


def _check_format(text: str) -> None:
    if _FORMAT_WIDTH.search(text):
        raise TemplateLimitError("the model's chat template pads a text beyond 9,999 characters")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here only its content counts."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """Keeps templates from storing underscore attributes, a step of known ways out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, positional = args[0], args[1:]  # `self` may be a keyword: namespace(self=...)
        for name in dict(*positional, **kwargs):
            _check_attribute(name)
        jinja2.utils.Namespace.__init__(self, *positional, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no attribute named {name!r}")


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, with the clock checked wherever a template reads or calls something."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _tojson
        self.filters |= {"format": _format}
        self.filters.pop("center")
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.globals |= {"range": _range, "namespace": _Namespace}

    def getattr(self, obj: Any, attribute: str) -> Any:
        _tick()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _tick()
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _tick()
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _PADDING_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if isinstance(text := getattr(value, "__self__", None), str):
            _check_format(text)
        return super().wrap_str_format(value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _tick()
        if operator == "*" and (_too_long(left, right) or _too_long(right, left)):
            raise TemplateLimitError(
                f"the model's chat template repeats a text beyond {MAX_REPEATED_CHARS:,} characters"
            )
        if operator == "**" and (abs(left) > 1_000_000 or abs(right) > 64):
            raise TemplateLimitError("the model's chat template computes a power beyond 1,000,000 ** 64")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)


def _too_long(repeated: Any, times: Any) -> bool:
    return isinstance(repeated, str | list | tuple) and len(repeated) * times > MAX_REPEATED_CHARS


_ENVIRONMENT = _Environment()


class SandboxedTemplate:
    """One compiled template. Safe to render from several threads.

    Raises:
        ChatTemplateError: the source is no valid Jinja.
    """

    def __init__(self, source: str) -> None:
        try:
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(_ENVIRONMENT.parse(source)))
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the model's chat template is no valid Jinja (line {error.lineno}: {error.message}): give the engine "
                f"a corrected template"
            ) from error

    def render(self, variables: Mapping[str, Any], *, max_chars: int, verbatim: Collection[str] = ()) -> str:
        """The rendered text.

        Args:
            max_chars: most characters that may come out.
            verbatim: characters that `tojson` never writes as an escape.

        Raises:
            TemplateRefusal: the template raised.
            TemplateLimitError: over a limit.
        """
        token = _run.set(_Run(time.monotonic() + TIME_LIMIT_S, MAX_LOOP_ITEMS, verbatim))
        try:
            return "".join(_limited(self._template.generate(dict(variables)), max_chars))
        except TemplateLimitError:
            raise
        except Exception as error:  # a template can raise anything that Python's operators can
            raise TemplateRefusal(str(error) or type(error).__name__) from error
        finally:
            _run.reset(token)


def _limited(chunks: Iterable[str], max_chars: int) -> Iterator[str]:
    for chunk in chunks:
        _tick()
        max_chars -= len(chunk)
        if max_chars < 0:
            raise TemplateLimitError("the model's chat template writes far more text than the messages hold")
        yield chunk
