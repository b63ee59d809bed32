"""Faulty responses of servers, and what must be recorded for each.

Every mode is one response to one request. It is recorded as an error with a message, or with every field correct.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tests.servers import chunked, cut, events, raw, stall, status

NAN, INF = float("nan"), float("inf")
KEY = "sk-hostile-0123456789"


@dataclass(frozen=True)
class Mode:
    """`answer` is a Fault or a JSON body. Without `error` the other fields must be recorded. One of several errors may be
    the outcome where it depends on when the bytes arrive."""

    answer: Any
    error: str | tuple[str, ...] = ""
    text: str | None = None
    finish: str | None = "stop"
    score: float | None = None
    counts: tuple[int | None, int | None] | None = None
    warning: str = ""


def whole(text: Any = "fine", **changes: Any) -> dict[str, Any]:
    """A valid completion with changed fields; those of the choice first."""
    choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
    choice |= {name: changes.pop(name) for name in [*changes] if name in (*choice, "message", "error_of_choice")}
    if "error_of_choice" in choice:
        choice["error"] = choice.pop("error_of_choice")
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return {"model": "m", "choices": [choice], "usage": usage, **changes}


def without(name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The completion without a field of the choice."""
    body = body or whole()
    (choice,) = body["choices"]
    return {**body, "choices": [{key: value for key, value in choice.items() if key != name}]}


def chat(content: Any, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop", **more}
    return {"model": "m", "choices": [choice]}


@lru_cache
def bomb(mib: int) -> bytes:
    """So many MiB of spaces, compressed a thousandfold."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    blanks = b" " * (1 << 20)
    return b"".join(compressor.compress(blanks) for _ in range(mib)) + compressor.flush()


GOOD = json.dumps(whole()).encode()
BLANKS = " " * 65536

STATUSES = {f"status {code}": Mode(status(code, "not so"), f"HTTP {code}: not so") for code in (400, 401, 429, 500, 503)}
REDIRECTS = {
    "redirect": Mode(status(307, "moved", Location="http://127.0.0.1:9/v1"), "redirects to http://127.0.0.1:9/v1"),
    "redirect to nowhere": Mode(status(302), "without a Location"),
    "redirect with a password": Mode(
        status(302, Location=f"http://user:{KEY}@127.0.0.1:9/?key=x"), "redirects to http://127.0.0.1:9/;"
    ),
    # Its body, which a 304 must not have, counts as the next response, and is read before or after this one is complete.
    "not modified": Mode(status(304), ("HTTP 304", "was cut")),
}
THROTTLES = {
    "429 for a week": Mode(status(429, Retry_After="604800"), "asks to wait 604800 s, longer than 600 s"),
    "429 as text": Mode(status(429, "busy", Retry_After="in a minute"), "HTTP 429: busy"),
}
BODIES = {
    "empty body": Mode(raw(b""), "has no choices"),
    "HTML with status 200": Mode(raw("<html>Sign in</html>", Content_Type="text/html"), "is not JSON"),
    "JSON named text/html": Mode(raw(GOOD, Content_Type="text/html"), text="fine"),
    "truncated JSON": Mode(raw(GOOD[:40]), "is not JSON"),
    "half of the length promised": Mode(raw(GOOD, Content_Length=str(len(GOOD) // 2)), ("is not JSON", "was cut")),
    "more promised than sent": Mode(cut(), "was cut"),
    "a byte-order mark": Mode(raw(b"\xef\xbb\xbf" + GOOD), text="fine"),
    "invalid UTF-8": Mode(raw(GOOD.replace(b"fine", b"\xff\xfe")), "is not JSON"),
    "nested too deeply": Mode(raw(b"[" * 200_000), "is not JSON"),
    "a number of 5000 digits": Mode(
        raw(GOOD.replace(b'"prompt_tokens": 3', b'"prompt_tokens": ' + b"9" * 5000)), "is not JSON"
    ),
    "a gzip bomb": Mode(raw(bomb(64), Content_Encoding="gzip"), "larger than 16 MiB"),
    "an endless body": Mode(chunked(itertools.repeat(BLANKS), content_type="application/json"), "larger than 16 MiB"),
    "gzip with two members": Mode(
        raw(gzip.compress(GOOD[:20]) + gzip.compress(GOOD[20:]), Content_Encoding="gzip"), text="fine"
    ),
    "deflate": Mode(raw(zlib.compress(GOOD), Content_Encoding="deflate"), text="fine"),
    "half a gzip": Mode(raw(gzip.compress(GOOD)[:-12], Content_Encoding="gzip"), "is not JSON"),
    "invalid gzip": Mode(raw(GOOD, Content_Encoding="gzip"), "cannot be decompressed"),
    "a slow body": Mode(chunked(itertools.repeat(" "), pause=0.05, content_type="application/json"), "within 1 s"),
    "no response": Mode(stall(), "within 1 s"),
    "a header of 100 kB": Mode(raw(GOOD, X_Long="x" * 100_000), "was cut"),
}
ERRORS = {
    "error alone": Mode({"error": {"message": "engine died"}}, "reported an error: engine died"),
    "error beside choices": Mode(whole(error={"message": "half"}), "reported an error: half"),
    "error of the choice": Mode(whole(error_of_choice={"message": "provider down"}), "reported an error: provider down"),
    "error null": Mode(whole(error=None), text="fine"),
    "a list as detail": Mode(raw('{"detail": [{"loc": ["body"]}]}', 422), "HTTP 422: [{'loc'"),
    "the key in an error": Mode(status(400, f"bad key {KEY}"), "bad key ***"),
    "escape sequences in an error": Mode(status(400, "\x1b[31mred\x07\u202e"), "\\x1b[31mred\\x07\\u202e"),
    "lines in an error": Mode(status(400, "one\n\n  two"), "HTTP 400: one two"),
    "an error of 3 MB": Mode(raw(b"x" * 3_000_000, 500), "HTTP 500: xxxx"),
}
FINISHES = {
    "finish_reason abort": Mode(whole("half", finish_reason="abort"), "finish_reason 'abort'"),
    **{
        f"finish_reason {given}": Mode(whole(finish_reason=given), text="fine", finish=normalized)
        for given, normalized in (
            ("eos", "stop"),
            ("MAX_TOKENS", "length"),
            ("SAFETY", "content_filter"),
            ("tool_calls", "tool_calls"),
        )
    },
    "withheld by a filter": Mode(whole(None, finish_reason="content_filter"), text="", finish="content_filter"),
    "finish_reason null": Mode(whole(finish_reason=None), text="fine", finish=None),
    "neither text nor finish_reason": Mode(whole("", finish_reason=None), "has no text"),
    "an empty answer": Mode(whole(""), text=""),
    "finish_reason as a list": Mode(whole(finish_reason=["stop"]), "choices[0].finish_reason: expected str"),
}
FIELDS = {
    **{
        f"choices {json.dumps(invalid)}": Mode({"choices": invalid}, message)
        for invalid, message in (
            ([], "has no choices"),
            ({"0": {}}, "choices: expected array"),
            ([None], "choices[0]: expected object"),
            ([{}], "has no text"),
        )
    },
    "a text that is a number": Mode(whole(7), "choices[0].text: expected str"),
    "no text": Mode(without("text"), "has no text"),
    "a content in parts": Mode(chat([{"type": "text", "text": "fine"}]), "choices[0].message.content: expected str"),
    "content null": Mode(chat(None), "has no text"),
    "a chat answer to a completion": Mode(chat("fine"), text="fine", counts=(None, None)),
    "index 1": Mode(whole(index=1), "no choice of index 0"),
    "several choices": Mode(
        {"choices": [{"index": index, "text": text, "finish_reason": "stop"} for index, text in ((1, "b"), (0, "a"))]},
        text="a",
        counts=(None, None),
    ),
    "another model": Mode(whole(model="gpt-2"), text="fine", warning="answers as gpt-2, but m was requested"),
    "a lone surrogate": Mode(raw(GOOD.replace(b"fine", b"\\ud800")), text="\ud800"),
    "control characters": Mode(raw(GOOD.replace(b"fine", b"a\\u0000\\u001b[2J")), text="a\0\x1b[2J"),
    "unknown fields": Mode(whole(extra={"nested": [1, {"x": None}]}, service_tier=7), text="fine"),
}
INVALID_COUNTS = "token counts are not valid"
COUNTS = {
    "usage as a list": Mode(whole(usage=[3, 2]), text="fine", counts=(None, None), warning=INVALID_COUNTS),
    **{
        f"{invalid!r} prompt tokens": Mode(
            whole(usage={"prompt_tokens": invalid, "completion_tokens": 2}),
            text="fine",
            counts=(None, 2),
            warning=INVALID_COUNTS,
        )
        for invalid in ("3", -1, 3.0, True, 10**30, NAN)
    },
    "usage null": Mode(whole(usage=None), text="fine", counts=(None, None)),
    "a count null": Mode(whole(usage={"prompt_tokens": None, "completion_tokens": 2}), text="fine", counts=(None, 2)),
}


def with_logprobs(**changes: Any) -> dict[str, Any]:
    """A completion of two tokens with their log-probabilities."""
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{"a": -0.1}, {"b": -0.2}], **changes}
    return whole("ab", logprobs=logprobs)


def chat_with_logprobs(**changes: Any) -> dict[str, Any]:
    entry = {"token": "yes", "logprob": -0.5, "top_logprobs": [{"token": "yes", "logprob": -0.5}], **changes}
    return chat("yes", logprobs={"content": [entry]})


TOKENS = {
    "a positive log-probability": Mode(with_logprobs(token_logprobs=[0.5, -0.2]), "above 0"),
    "a log-probability of NaN": Mode(with_logprobs(token_logprobs=[NAN, -0.2]), "NaN"),
    "a log-probability as a text": Mode(with_logprobs(token_logprobs=["-0.1", -0.2]), "token_logprobs[0]: expected float"),
    "a log-probability of null": Mode(with_logprobs(token_logprobs=[None, -0.2]), "not every token has one"),
    "too few log-probabilities": Mode(with_logprobs(token_logprobs=[-0.1]), "not every token has one"),
    "the likeliest as lists": Mode(with_logprobs(top_logprobs=[["a"], ["b"]]), "top_logprobs[0]: expected object"),
    "a likeliest above 0": Mode(with_logprobs(top_logprobs=[{"a": 3.0}, {}]), "above 0"),
    "rounded above 0": Mode(with_logprobs(token_logprobs=[1e-4, -0.2]), text="ab"),
    "minus infinity": Mode(with_logprobs(token_logprobs=[-INF, -0.2]), text="ab"),
    "logprobs empty": Mode(whole("ab", logprobs={}), text="ab", warning="no log-probabilities of its answers"),
    "chat: a positive log-probability": Mode(chat_with_logprobs(logprob=0.5), "above 0"),
    "chat: a token that is no text": Mode(chat_with_logprobs(token=5), "content[0].token: expected str"),
    "chat: an id that is no number": Mode(chat_with_logprobs(id="5"), "content[0].id: expected int"),
}


def delta(text: Any = None, finish: Any = None, **more: Any) -> str:
    return json.dumps({"model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, **more}]})


ROLE = json.dumps({"model": "m", "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
FAIL = json.dumps({"error": {"message": "engine died"}})
ENDED = [delta("fi"), delta("ne", "stop")]
LINES = "".join(f"data: {line}\n\n" for line in ENDED)

STREAMS = {
    "a healthy stream": Mode(events(ROLE, *ENDED, USAGE), text="fine", counts=(3, 2)),
    "without [DONE]": Mode(events(*ENDED, finish=False), text="fine"),
    "no finish_reason": Mode(events(delta("fi"), delta("ne")), "gave no finish_reason"),
    "cut after a token": Mode(events(delta("fi"), finish=False), "gave no finish_reason"),
    "cut inside an event": Mode(chunked([LINES[:-40]]), "is not JSON"),
    "an error after the end": Mode(events(*ENDED, FAIL), "reported an error: engine died"),
    "an error by its name": Mode(chunked([LINES, 'event: error\ndata: {"message": "oops"}\n\n']), "reported an error: oops"),
    "an error without a message": Mode(
        chunked([LINES, "event: error\ndata: {}\n\n"]), "reported an error: without a message"
    ),
    "an error inside a choice": Mode(events(delta("fi", error={"message": "gone"})), "reported an error: gone"),
    "finish_reason abort": Mode(events(delta("fi"), delta("", "abort")), "finish_reason 'abort'"),
    "an event that is no JSON": Mode(events(delta("fi"), "oops", delta("ne", "stop")), "is not JSON"),
    "an event that is a list": Mode(events("[]", *ENDED), "an event of the stream is not valid"),
    "content a number": Mode(events(delta(7), *ENDED), "choices[0].delta.content: expected str"),
    "only another choice": Mode(events(delta("fi", "stop", index=1)), "no choice of index 0"),
    "message instead of delta": Mode(
        events('{"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}'), text="fine"
    ),
    "invalid counts": Mode(
        events(*ENDED, '{"choices": [], "usage": {"prompt_tokens": "3"}}'),
        text="fine",
        counts=(None, None),
        warning=INVALID_COUNTS,
    ),
    "comments and keep-alives": Mode(chunked([": hello\n\n", "data:\n\n", "retry: 10\nid: 1\n", LINES]), text="fine"),
    "without blank lines": Mode(chunked([LINES.replace("\n\n", "\n")]), "is not JSON"),
    "without a space after the colon": Mode(chunked([LINES.replace("data: ", "data:")]), text="fine"),
    "no line end at the end": Mode(chunked([LINES.rstrip("\n")]), text="fine"),
    "gzip": Mode(chunked([gzip.compress(LINES.encode())], Content_Encoding="gzip"), text="fine"),
    "a gzip bomb": Mode(chunked([bomb(96)], Content_Encoding="gzip"), "longer than 16 MiB"),
    "an endless line": Mode(chunked(itertools.chain(["data: "], itertools.repeat("x" * 65536))), "longer than 16 MiB"),
    "endless comments": Mode(chunked(itertools.repeat((":" + "x" * 1022 + "\n") * 64)), "larger than 64 MiB"),
    "endless keep-alives": Mode(chunked(itertools.repeat(": wait\n\n"), pause=0.05), "within 1 s"),
    "a whole answer": Mode(raw(GOOD, Content_Type="application/json"), text="fine", counts=(3, 2)),
    "events named text/plain": Mode(chunked([LINES], content_type="text/plain"), "is not JSON"),
}
