"""The finish_reason of many engines and providers, mapped to that of OpenAI; one that means a failure is refused."""

from __future__ import annotations

from mill.models.http import Failure
from mill.models.http.failures import raise_reported, shown
from mill.models.openai_compat.schema import Choice

STOP, LENGTH, TOOL_CALLS, CONTENT_FILTER = "stop", "length", "tool_calls", "content_filter"

_SPELLINGS = {
    STOP: "stop eos eos_token end_turn stop_sequence stop_token end_of_turn complete completed finish finished",
    LENGTH: "length max_tokens max_output_tokens max_new_tokens model_length limit model_context_window_exceeded",
    TOOL_CALLS: "tool_calls function_call tool_use tool_call",
    CONTENT_FILTER: "content_filter content_filtered safety refusal recitation blocklist prohibited_content spii "
    "guardrail_intervened sensitive",
}
_REASONS = {name: reason for reason, names in _SPELLINGS.items() for name in names.split()}
_NONE = ("", "null", "none")


def read_finish(choice: Choice) -> str | None:
    """OpenAI's finish_reason; None if the server gives none. A failed or cancelled response raises Failure."""
    raise_reported({"error": choice.error})
    given = (choice.finish_reason or "").strip().lower()
    if given in _NONE:
        return None
    if given not in _REASONS:
        raise Failure("reported", f"the server ended the answer with finish_reason {shown(choice.finish_reason, 60)!r}")
    return _REASONS[given]
