"""Which fields of a request change the prompt that a server renders, shown by the prompt itself.

A server ignores fields that it does not know, and a template those that it does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mill.api.errors import CannotServe
from mill.api.request import Request
from mill.models.http.client import Client
from mill.models.http.failures import Failure
from mill.models.tokens.chat_template import EFFORT, THINKING, refuse_plain_text

_DIALOG = [{"role": "user", "content": "Count."}]
_ROUTES = (("/apply-template", "prompt"), ("/tokenize", "tokens"))  # of llama-server and of vLLM


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
    variables: list[Mapping[str, Any]] = [{EFFORT: effort}]
    variables += [{name: False} for name in THINKING] if effort == "none" else []
    return [{EFFORT: effort}, *({"chat_template_kwargs": dict(one)} for one in variables)]


def _rendered(client: Client, model: str, fields: Mapping[str, Any]) -> Any:
    """A short dialog as the server renders it with these fields; None where it does not show that."""
    for path, field in _ROUTES:
        try:
            body = client.probe("POST", path, {"model": model, "messages": _DIALOG, **fields}).body
        except Failure:
            continue
        if isinstance(body, dict) and body.get(field) is not None:
            return body[field]
    return None
