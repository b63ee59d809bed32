"""What a server shows about itself: whether a name is that of its model, and what changes the prompts that it renders.

Servers ignore fields of a request that they do not know, and templates those that they do not use: only the rendered prompt
shows it. An answer that the prompt begins (assistant prefill) is continued where that prompt ends with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mill.api.errors import CannotServe
from mill.api.request import Request
from mill.models.http.client import Client
from mill.models.http.failures import Failure
from mill.models.tokens.tokenizer import EFFORT, THINKING, refuse_plain_text

_PARTS = re.compile(r"-\d{5}-of-\d{5}$")
_VERSION = re.compile(r"([-@:_.](\d{4}-?\d{2}-?\d{2}|\d{2}-\d{2}|\d{3,8}|latest|preview|exp|v\d+(:\d+)?))+")
_QUANTIZATION = re.compile(r"[-._:](ud-)?(i?q\d\w*|t?q\d_\d|f16|f32|bf16|fp16|mxfp4\w*)$")
_DIALOG = [{"role": "user", "content": "Count."}]
BEGUN_ANSWER = "One, two"
BEGUN_DIALOG = [*_DIALOG, {"role": "assistant", "content": BEGUN_ANSWER}]
VLLM_FIELDS = {"add_generation_prompt": False, "continue_final_message": True}
_LLAMA, _VLLM = ("/apply-template", "prompt"), ("/tokenize", "tokens")  # where they render, and the field with the prompt


def same_model(first: str, second: str) -> bool:
    """Equal but for folders, letter case, `.gguf`, and a date or version at the end: gpt-4o, gpt-4o-2024-08-06."""
    short, long = sorted((_base(first), _base(second)), key=len)
    return long.startswith(short) and (long == short or _VERSION.fullmatch(long[len(short) :]) is not None)


def same_file(requested: str, served: str) -> bool:
    """The same for weight files; the requested name may omit the quantization."""
    return same_model(requested, served) or _base(requested) == _QUANTIZATION.sub("", _base(served))


def _base(name: str) -> str:
    last = re.split(r"[/\\]", name.strip().rstrip("/\\"))[-1].lower()
    return _PARTS.sub("", last.removesuffix(".gguf")).removesuffix(":latest")


def renders_open(client: Client) -> bool:
    """llama-server: its template leaves a last message of the assistant open."""
    return _ends_open(_post(client, _LLAMA, {"messages": BEGUN_DIALOG}))


def takes_vllm_fields(client: Client, model: str) -> bool:
    """vLLM: with these fields of a request, its template leaves a last message of the assistant open."""
    ids = _post(client, _VLLM, {"model": model, "messages": BEGUN_DIALOG, **VLLM_FIELDS})
    return ids is not None and _ends_open(_post(client, ("/detokenize", "prompt"), {"model": model, "tokens": ids}))


def _ends_open(prompt: Any) -> bool:
    return isinstance(prompt, str) and prompt.endswith(BEGUN_ANSWER)


def effective_fields(client: Client, model: str, request: Request, who: str) -> tuple[dict[str, Any], bool]:
    """The fields that a request needs for its reasoning effort and variables of the chat template, and whether the server
    shows that they have an effect. Refused where it shows that they have none."""
    variables = dict(request.options.get("chat_template_kwargs", {}))
    effort = request.options.get(EFFORT)
    fields: dict[str, Any] = {"chat_template_kwargs": variables} if variables else {}
    refuse_plain_text(request)
    plain = _rendered(client, model, {})
    if plain is None:
        return {**fields, **({EFFORT: effort} if effort else {})}, False
    if fields and _rendered(client, model, fields) == plain:
        raise CannotServe(f"chat_template_kwargs {', '.join(variables)} change nothing in the prompts of {who}")
    if effort is None:
        return fields, True
    for candidate in _spellings(effort):
        merged = {**fields, **candidate}
        if variables and "chat_template_kwargs" in candidate:
            merged["chat_template_kwargs"] = {**candidate["chat_template_kwargs"], **variables}
        if _rendered(client, model, candidate) not in (None, plain):
            return merged, True
    raise CannotServe(f"reasoning_effort={effort} changes nothing in the prompts of {who}")


def leaves_out_tools(client: Client, model: str, request: Request) -> bool:
    """Whether the server shows that its prompt is the same with and without the tools of a request."""
    plain = _rendered(client, model, {})
    return plain is not None and _rendered(client, model, {"tools": [tool.to_dict() for tool in request.tools]}) == plain


def _spellings(effort: str) -> list[dict[str, Any]]:
    """How servers and templates call the effort; none also switches reasoning off."""
    variables = [{EFFORT: effort}, *({name: False} for name in THINKING if effort == "none")]
    return [{EFFORT: effort}, *({"chat_template_kwargs": names} for names in variables)]


def _rendered(client: Client, model: str, fields: Mapping[str, Any]) -> Any:
    """A short dialog as the server renders it with these fields; None where it does not show that."""
    body = {"model": model, "messages": _DIALOG, **fields}
    return next((shown for route in (_LLAMA, _VLLM) if (shown := _post(client, route, body)) is not None), None)


def _post(client: Client, route: tuple[str, str], body: Mapping[str, Any]) -> Any:
    """A field of the server's answer; None where there is none."""
    path, field = route
    try:
        answer = client.probe("POST", path, body).body
    except Failure:
        return None
    return answer.get(field) if isinstance(answer, dict) else None
