"""Whether a server continues an answer that the prompt begins (assistant prefill), shown by the prompt that it makes.

A server that does not know the option ignores it, and answers with a message of its own: only the rendered prompt shows it.
"""

from __future__ import annotations

from typing import Any

from mill.models.http.client import Client
from mill.models.http.failures import Failure

BEGUN_ANSWER = "One, two"
BEGUN_DIALOG = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": BEGUN_ANSWER}]
VLLM_FIELDS = {"add_generation_prompt": False, "continue_final_message": True}


def renders_open(client: Client) -> bool:
    """llama-server: its template leaves a last message of the assistant open."""
    return _ends_open(client, "/apply-template", {"messages": BEGUN_DIALOG}, "prompt")


def takes_vllm_fields(client: Client, model: str) -> bool:
    """vLLM: with these fields of a request, its template leaves a last message of the assistant open."""
    try:
        body = {"model": model, "messages": BEGUN_DIALOG, **VLLM_FIELDS}
        ids = _field(client.probe("POST", "/tokenize", body).body, "tokens")
    except Failure:
        return False
    return _ends_open(client, "/detokenize", {"model": model, "tokens": ids}, "prompt")


def _ends_open(client: Client, path: str, body: dict[str, Any], field: str) -> bool:
    try:
        text = _field(client.probe("POST", path, body).body, field)
    except Failure:
        return False
    return isinstance(text, str) and text.endswith(BEGUN_ANSWER)


def _field(body: Any, name: str) -> Any:
    return body.get(name) if isinstance(body, dict) else None
