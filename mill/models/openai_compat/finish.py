"""Why an answer ended, in the words of many engines and providers, and whether it is an answer at all."""

from __future__ import annotations

from mill.models.http import Failure
from mill.models.http.failures import raise_reported, shown
from mill.models.openai_compat.schema import Choice

STOP, LENGTH, TOOL_CALLS, CONTENT_FILTER = "stop", "length", "tool_calls", "content_filter"

_WORDS = {
    STOP: "stop eos eos_token end_turn stop_sequence stop_token end_of_turn complete completed finish finished",
    LENGTH: "length max_tokens max_output_tokens max_new_tokens model_length limit model_context_window_exceeded",
    TOOL_CALLS: "tool_calls function_call tool_use tool_call",
    CONTENT_FILTER: "content_filter content_filtered safety refusal recitation blocklist prohibited_content spii "
    "guardrail_intervened sensitive",
}
_MEANING = {word: reason for reason, words in _WORDS.items() for word in words.split()}
_NONE = ("", "null", "none")


def read_finish(choice: Choice) -> str | None:
    """The reason in OpenAI's words; None where the server gives none. An answer that failed or was cancelled is none."""
    raise_reported({"error": choice.error})
    given = (choice.finish_reason or "").strip().lower()
    if given in _NONE:
        return None
    if given not in _MEANING:
        raise Failure("reported", f"the server ended the answer with finish_reason {shown(choice.finish_reason, 60)!r}")
    return _MEANING[given]
