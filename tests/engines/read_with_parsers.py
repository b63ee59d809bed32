"""Runs in vLLM's environment: reads texts with its parsers. argv: a tokenizer's folder, cases as JSON; prints JSON."""

import json
import sys
from typing import Any

from transformers import AutoTokenizer

from mill.api.errors import MillError
from mill.api.message import Message
from mill.api.request import MULTI_ROUND, Request, generation_options
from mill.api.tools import Tool
from mill.models.vllm.parsers import Parsers

ADD = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "number"}}})
STOPS = ["END"]


def read(tokenizer: Any, reasoning: str | None, tool_calls: str | None, text: str) -> Any:
    parsers = Parsers(reasoning, tool_calls)
    request = Request(MULTI_ROUND, (Message("user", "Add."),), options=generation_options(until=STOPS), tools=(ADD,))
    try:
        parsers.check(tokenizer)
    except MillError as error:
        return str(error)
    found = parsers.read(request, text, STOPS, tokenizer, opened=False)
    return [found.reasoning, found.text, [[call.name, call.arguments] for call in found.tool_calls]]


if __name__ == "__main__":
    loaded = AutoTokenizer.from_pretrained(sys.argv[1])
    print("\n" + json.dumps([read(loaded, *case) for case in json.loads(sys.argv[2])]))
