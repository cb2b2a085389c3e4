"""Chat messages to token ids through the model's own template; text from users and documents stays text.

Running the template within limits is `engine.template_sandbox`'s part, encoding is `engine.tokenizer`'s.

How a control token that somebody wrote into a message is told from one that the template wrote: every control token
contains a bracket character (`|`, `<`, `[`, ...), which is *guarded*. While the template runs, each guarded character
that came from a message, a tool or a document is replaced by a stand-in, a character that occurs nowhere else in
this call. So whatever the template does with the text (trims, cuts, joins or escapes it), a control token in
the rendered text got its bracket from the template. Those are cut out by id, stand-ins become their characters again,
and the whole is encoded in one piece in which strings cannot spell a control token (`Tokenizer.encode_segments`).
For messages without control tokens the ids are exactly those of transformers' `apply_chat_template`.

The one thing in a message that templates do join to a control token, by design, is the role (`'<|' + role + '|>'`);
roles are checked against a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from engine.errors import ChatTemplateError, InvalidParameterError
from engine.template_sandbox import SandboxedTemplate, TemplateLimitError, TemplateRefusal
from engine.tokenizer import Tokenizer
from engine.tool_format import Syntax, native_syntax

Message = dict[str, Any]

ROLES = frozenset(
    {"system", "user", "assistant", "tool", "function", "developer", "ipython", "observation", "model", "environment"}
)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{{ bos_token if adds_bos else '' }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)

# Brackets of control tokens, the ones least common in prose first: a guarded character is hidden from the template.
_BRACKETS = "|｜<[{>]}"
_REASONING = r"</?think>"  # templates look for these in what the assistant wrote, whether they are tokens or not
_ASSISTANT_TEXT = frozenset({"content", "reasoning_content", "reasoning", "thinking"})
# Stand-ins: cuneiform and hieroglyphs. They have no case, no other normal form, and unlike private-use characters they
# are printable: a template that writes a Python value as it is (`{{ tool }}`) does not turn them into escapes.
_STAND_INS = tuple(filter(str.isprintable, map(chr, range(0x12000, 0x14650))))
_PROBE = "is a list of blocks understood"


class ChatTemplate:
    """The chat template of a model, ready to render. Immutable and safe to share between threads.

    Args:
        source: Jinja source (`tokenizer.chat_template`). None: ChatML where the vocabulary has its tokens, else plain
            "role: text" lines.

    Attributes:
        stop: texts that end an answer in this format beside the end tokens (only the plain format needs one).
        supports_tools: whether the template writes tool definitions into the prompt.
        tool_syntax: how it teaches the model to write tool calls; None where it does not, or in no way known here.

    Raises:
        ChatTemplateError: the source is no valid Jinja.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.stop: tuple[str, ...] = ()
        if source is None:
            has_chatml = {"<|im_start|>", "<|im_end|>"} <= tokenizer.control_tokens.keys()
            self.stop = () if has_chatml else ("\nuser:",)
            source = CHATML if has_chatml else PLAIN
        self.source = source
        self._template = SandboxedTemplate(source)
        self.supports_tools = "tools" in self._template.variables
        self.tool_syntax: Syntax | None = native_syntax(source) if self.supports_tools else None
        self._guard = _Guard(tokenizer)
        self._takes_blocks = self._probe_blocks()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation.

        Args:
            messages: `role` and `content` (a string, or a list of `{"type": "text", "text": ...}` blocks), with
                `tool_calls`, `tool_call_id` and `name` where the template knows them.
            tools: function definitions in OpenAI's form.
            add_generation_prompt: end with the header of an assistant's message.
            kwargs: further variables of the template, `documents` among them; plain data only.

        Messages that the template refuses are arranged anew before giving up: those of one role in a row become one,
        and a system message becomes the head of the first user message.

        Raises:
            InvalidParameterError: a message without a known role, a content that is not text, a lone surrogate.
            ChatTemplateError: the template refuses the messages in every arrangement, or goes over a limit.
        """
        segments = self._segments(messages, tools, add_generation_prompt, kwargs)
        ids = self.tokenizer.encode_segments(segments)
        bos = self.tokenizer.bos_token_id
        while bos is not None and ids[:2] == [bos, bos]:
            ids.pop(0)
        return ids

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The conversation as text, for people to read: encoding it would not tell control tokens from text."""
        segments = self._segments(messages, tools, add_generation_prompt, kwargs)
        return "".join(self.tokenizer.token_str(s) if isinstance(s, int) else s for s in segments)

    # ------------------------------------------------------------------------------------------------------ private

    def _segments(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> list[str | int]:
        """Text and ids of the control and markup tokens in it, in order."""
        prepared = self._prepared(messages)
        variables = {"tools": list(tools) if tools else None, "documents": None, **kwargs}
        try:
            stand_ins = self._guard.stand_ins([prepared, variables, self.source])
        except RecursionError:
            raise InvalidParameterError("messages", "nested too deeply; a few dozen levels are plenty") from None
        guarded = {name: self._guard.hide(value, stand_ins) for name, value in variables.items()}
        guarded |= self.tokenizer.special_tokens_map
        guarded |= {"adds_bos": self.tokenizer.adds_bos, "add_generation_prompt": add_generation_prompt}

        text = self._first_accepted(prepared, guarded, stand_ins)
        back = {ord(stand_in): character for character, stand_in in stand_ins.items()}
        segments = self.tokenizer.split_tokens(text, control=True)
        return [segment.translate(back) if isinstance(segment, str) else segment for segment in segments]

    def _first_accepted(
        self, prepared: list[Message], variables: Mapping[str, Any], stand_ins: Mapping[str, str]
    ) -> str:
        refusal = ""
        for arranged in _arrangements(prepared):
            hidden = [self._guard.hide_message(message, stand_ins) for message in arranged]
            try:
                return self._run({**variables, "messages": hidden}, stand_ins)
            except TemplateRefusal as error:
                refusal = refusal or str(error)
        roles = ", ".join(message["role"] for message in prepared)
        raise ChatTemplateError(
            f"the model's chat template refuses these messages (roles: {roles}): {refusal}. Send at most one system "
            f"message, first, and then user and assistant in turn"
        )

    def _run(self, variables: Mapping[str, Any], stand_ins: Mapping[str, str]) -> str:
        given = sum(len(text) for text in _texts(dict(variables)))
        return self._template.render(
            variables, max_chars=32 * given + 16 * len(self.source) + 1_000_000, verbatim=set(stand_ins.values())
        )

    def _prepared(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        if isinstance(messages, str | Mapping) or not messages:
            raise InvalidParameterError("messages", "a list of at least one message is needed")
        return [self._prepared_message(index, message) for index, message in enumerate(messages)]

    def _prepared_message(self, index: int, message: Mapping[str, Any]) -> Message:
        field = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidParameterError(
                field, f"a mapping with role and content is needed, not {type(message).__name__}"
            )
        # Clients send `content: null` beside tool calls; templates know a missing key, not None.
        prepared = {str(key): value for key, value in message.items() if value is not None}
        role = prepared.get("role")
        if role not in ROLES:
            raise InvalidParameterError(f"{field}.role", f"{role!r} is no role; known are {', '.join(sorted(ROLES))}")
        if role == "developer" and "developer" not in self.source:
            prepared["role"] = "system"
        if "content" in prepared:
            blocks = _blocks(f"{field}.content", prepared["content"])
            prepared["content"] = blocks if self._keeps_blocks(blocks) else _flat(blocks)
        if "tool_calls" in prepared:
            prepared["tool_calls"] = [_with_parsed_arguments(call) for call in prepared["tool_calls"]]
        return prepared

    def _keeps_blocks(self, content: str | list[Message]) -> bool:
        return isinstance(content, list) and self._takes_blocks

    def _probe_blocks(self) -> bool:
        """Whether the template reads a content that is a list of blocks, rather than failing on it or printing it."""
        message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
        variables = {**self.tokenizer.special_tokens_map, "messages": [message], "tools": None, "documents": None}
        try:
            text = self._run({**variables, "adds_bos": False, "add_generation_prompt": True}, {})
        except (TemplateRefusal, TemplateLimitError):
            return False
        return _PROBE in text and "{'type'" not in text and '{"type"' not in text


class _Guard:
    """Hides guarded characters of untrusted values behind stand-ins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._control = _guarded(tokenizer.control_tokens)
        self._all = _guarded([*tokenizer.control_tokens, *tokenizer.markup_tokens])
        markup = [_REASONING, *map(re.escape, sorted(tokenizer.markup_tokens, key=len, reverse=True))]
        self._markup = re.compile(f"({'|'.join(markup)})")
        tokens = [*tokenizer.control_tokens, *tokenizer.markup_tokens]
        self._characters = sorted(set("".join(tokens)))
        self._inner = "\0".join(token[1:-1] for token in tokens)
        self._longest = max(map(len, tokens), default=0)

    def stand_ins(self, values: Any) -> dict[str, str]:
        """A stand-in for each character of control tokens, none of which occurs in the values."""
        used = {character for text in _texts(values) for character in set(text)}
        free = (character for character in _STAND_INS if character not in used)
        chosen = dict(zip(self._characters, free, strict=False))
        if len(chosen) < len(self._characters):
            raise InvalidParameterError(
                "messages", "the text uses nearly every cuneiform and hieroglyphic character there is; send it in parts"
            )
        return chosen

    def hide(self, value: Any, stand_ins: Mapping[str, str]) -> Any:
        """The value as plain data, with every guarded character hidden, in keys too."""
        hide = lambda text: self._hide_text(text, self._all, stand_ins)  # noqa: E731
        return _mapped(value, hide, name=hide)

    def hide_message(self, message: Message, stand_ins: Mapping[str, str]) -> Message:
        """A message with guarded characters hidden. What an assistant wrote may contain markup such as `<think>`."""
        hidden: Message = {}
        for key, value in message.items():
            of_assistant = message["role"] == "assistant" and key in _ASSISTANT_TEXT
            hide = self._hide_assistant_text if of_assistant else self._hide_text_and_inner
            hidden_key = self._hide_text(key, self._all, stand_ins)
            hidden[hidden_key] = value if key == "role" else self._hide_value(value, hide, stand_ins)
        return hidden

    def _hide_value(
        self, value: Any, hide: Callable[[str, Mapping[str, str]], str], stand_ins: Mapping[str, str]
    ) -> Any:
        """Keys, and the values of `type`, are names that templates look up: of them only brackets are hidden."""
        return _mapped(
            value, lambda text: hide(text, stand_ins), name=lambda text: self._hide_text(text, self._all, stand_ins)
        )

    def _hide_text(self, text: str, guarded: re.Pattern[str], stand_ins: Mapping[str, str]) -> str:
        return guarded.sub(lambda match: stand_ins[match.group()], text)

    def _hide_text_and_inner(self, text: str, stand_ins: Mapping[str, str]) -> str:
        """Hides also the start of a text that is the inside of a control token, for `'<|' + name + '|>'`."""
        hidden = self._hide_text(text, self._all, stand_ins)
        inside = hidden.strip()
        if inside[:1] in stand_ins and len(inside) < self._longest and inside in self._inner:
            return hidden.replace(inside, stand_ins[inside[0]] + inside[1:], 1)
        return hidden

    def _hide_assistant_text(self, text: str, stand_ins: Mapping[str, str]) -> str:
        pieces = self._markup.split(text)  # text, markup, text, ...
        return "".join(p if n % 2 else self._hide_text(p, self._control, stand_ins) for n, p in enumerate(pieces))


def _guarded(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches guarded characters: a bracket of each token, wherever it stands; of a token without, its first letter."""
    brackets: set[str] = set()
    words: list[str] = []
    for token in tokens:
        bracket = next((character for character in _BRACKETS if character in token), None)
        if bracket is not None:
            brackets.add(bracket)
        else:
            words.append(f"{re.escape(token[0])}(?={re.escape(token[1:])})")
    alternatives = [re.escape(bracket) for bracket in sorted(brackets)] + sorted(words)
    return re.compile("|".join(alternatives) or r"(?!)")


def _texts(value: Any) -> Iterator[str]:
    """All strings in plain data, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bool | int | float):
        yield str(value)


def _mapped(value: Any, change: Callable[[str], str], name: Callable[[str], str]) -> Any:
    """Plain data with every string changed by `change`, keys and values of `type` by `name`; objects become text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        mapped = {}
        for key, item in value.items():
            typed = key == "type" and isinstance(item, str)
            mapped[name(str(key))] = name(item) if typed else _mapped(item, change, name)
        return mapped
    if isinstance(value, list | tuple):
        return [_mapped(item, change, name) for item in value]
    return change(str(value))


# ---------------------------------------------------------------------------------------------------------- messages


def _blocks(field: str, content: Any) -> str | list[Message]:
    """A content as text, or as a list of text blocks. Raises InvalidParameterError for anything but text."""
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, list | tuple):
        raise InvalidParameterError(field, f"a text or a list of text blocks is needed, not {type(content).__name__}")
    blocks: list[Message] = []
    for block in content:
        block = {"type": "text", "text": block} if isinstance(block, str) else block
        kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
        if kind != "text" or not isinstance(block.get("text"), str):
            raise InvalidParameterError(field, f"this model reads text only; a block of type {kind!r} was given")
        blocks.append(dict(block))
    return blocks


def _flat(content: str | list[Message]) -> str:
    return content if isinstance(content, str) else "\n".join(block["text"] for block in content)


def _with_parsed_arguments(call: Any) -> Any:
    """A tool call whose arguments are an object: OpenAI's API sends them as JSON text, templates expect data."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        try:
            parsed = json.loads(function["arguments"])
        except ValueError:
            return call
        if isinstance(parsed, dict):
            function["arguments"] = parsed
    return {**call, "function": function}


def _arrangements(messages: list[Message]) -> Iterator[list[Message]]:
    """The messages as given, then arranged anew in ways that stricter templates accept."""
    yield messages
    with_content = [message if "content" in message else {**message, "content": ""} for message in messages]
    if with_content != messages:
        yield with_content
    merged = _merged(with_content)
    if len(merged) != len(messages):
        yield merged
    if any(message["role"] == "system" for message in merged):
        yield _merged(_system_in_user(merged))


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Messages of one role in a row as one, texts joined by a blank line; tool calls and results stay apart."""
    merged: list[Message] = []
    for message in messages:
        plain = message.keys() <= {"role", "content", "name"} and message["role"] in ("system", "user", "assistant")
        last = merged[-1] if merged else None
        if (
            plain
            and last is not None
            and last["role"] == message["role"]
            and last.keys() <= {"role", "content", "name"}
        ):
            texts = [_flat(last["content"]), _flat(message["content"])]
            merged[-1] = {**last, "content": "\n\n".join(text for text in texts if text)}
        else:
            merged.append(message)
    return merged


def _system_in_user(messages: Sequence[Message]) -> list[Message]:
    """Each system text as the head of the user message after it; one that no user message follows becomes one."""
    arranged: list[Message] = []
    pending: list[str] = []
    for message in messages:
        if message["role"] == "system":
            pending.append(_flat(message["content"]))
        elif message["role"] == "user" and pending:
            arranged.append({**message, "content": "\n\n".join([*pending, _flat(message["content"])])})
            pending = []
        else:
            arranged.append(message)
    if pending:
        arranged.append({"role": "user", "content": "\n\n".join(pending)})
    return arranged
