"""A sample as one flat row, for pandas and DuckDB: scalar columns first, the whole record behind them.

model, model_id, settings   the run: the model's name, its folder (other weights or another dtype are another one), and the
                            settings as in `mill collect`
task, id, category          the sample; category is null where there is none
prompt                      as it was sent: after the chat template, or the messages as JSON where a server applies it
target, response            the gold answer as text; the text (or label) of the model, in a dialog of the last round
reasoning                   what the model wrote before its answer; null where it did not reason
extracted                   the answer that was read from the response; of multiple choice spelled as `target` is
choices, chosen, choice_logprobs, correct   of multiple choice by log-probability
<metric>                    the sample's value of each metric, the mean over repeats; null where it has none
error, finish_reason, prompt_tokens, output_tokens, seconds, reasoning_tokens (among the output tokens, where counted)
truncated_reasoning         whether a response ended inside of its reasoning, without an answer
max_rounds_reached          of a dialog: whether one of its repeats ended at the limit of rounds before it was over
responses, values, ...      every response and value of every repeat; `mill score` reads these
prompts                     where a sample has responses to different prompts, such as orders of choices: one for each
tools, added_tools          the tools that the model got, and those that came in a later round of a dialog
media                       images, audio and videos of the prompt: type, name (a path, where there is one) and digest
messages                    of a dialog: the messages of the last round for each repeat
details                     for each repeat why it has its values, such as the error of a program; missing for most tasks

`response` and the columns after it are those of the first repeat. Numbers that are not finite are null in flat columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mill.metrics  # noqa: F401  registers the built-in metrics
from mill.api.registry import metrics
from mill.api.response import Response, encode_float
from mill.api.storage import json_text
from mill.api.task import Opaque, Value

if TYPE_CHECKING:
    from mill.runs.folder import RunFolder
    from mill.runs.samples import ScoredSample


def run_columns(model: str, folder: RunFolder) -> dict[str, str]:
    """The columns that distinguish the rows of several runs."""
    return {"model": model, "model_id": folder.path.parent.name, "settings": folder.path.name}


def sample_row(run: Mapping[str, str], task: str, scored: ScoredSample) -> dict[str, Any]:
    """`run` are the columns of the run, as `run_columns` gives them."""
    record = scored.record
    first = record.responses[0] if record.responses else []
    row = {
        **run,
        "task": task,
        "id": record.sample.id,
        "category": scored.category or None,
        "prompt": record.sent or record.prompt,
        "target": _as_text(record.target),
        "response": _text(first),
        "reasoning": first[-1].reasoning if first else None,
        "extracted": scored.extracted,
        **_choices(scored, first),
        "error": scored.error,
        "finish_reason": first[-1].finish_reason if first else None,
        "prompt_tokens": _total([response.prompt_tokens for response in first]),
        "output_tokens": _total([response.output_tokens for response in first]),
        "seconds": _total([response.seconds for response in first]),
        "reasoning_tokens": _total([response.reasoning_tokens for response in first]),
        "truncated": record.truncated,
        "truncated_reasoning": record.truncated_reasoning,
    }
    nested = {
        **({"unrendered": record.prompt} if record.sent and record.sent != record.prompt else {}),
        "continuations": record.continuations,
        "responses": [[response.to_dict() for response in repeat] for repeat in record.responses],
        "values": {name: [_plain(value) for value in values] for name, values in scored.values.items()},
        **({"extracted_repeats": list(scored.extracted_repeats)} if scored.extracted_repeats else {}),
        **({"judgements": record.judgements} if record.judgements else {}),
        **({"prompts": record.prompts} if record.prompts else {}),
        **({"messages": record.messages} if any(record.messages) else {}),
        **({"tools": record.tools} if record.tools else {}),
        **({"added_tools": record.added_tools} if record.added_tools else {}),
        **({"media": record.media} if record.media else {}),
        **({"max_rounds_reached": record.max_rounds_reached} if record.messages else {}),
        **({"details": [dict(repeat) for repeat in scored.details]} if scored.details else {}),
        "keys": record.keys,
        "doc": record.sample.doc,
    }
    taken = row.keys() | nested.keys() | {"escaped", "status"}
    for name, values in scored.values.items():
        row[f"metric_{name}" if name in taken else name] = _value(values, scored.aggregations.get(name, ""))
    return {**row, **nested}


def _as_text(target: Any) -> str | None:
    """A gold answer as text, so that the column has one type in all files; a list or an object as JSON."""
    if target is None or isinstance(target, str):
        return target
    return json_text(target) if isinstance(target, (list, tuple, dict, bool)) else str(target)


def _text(responses: Sequence[Response]) -> str | None:
    if not responses:
        return None
    return responses[-1].text if responses[-1].text is not None else responses[-1].label


def _choices(scored: ScoredSample, responses: Sequence[Response]) -> dict[str, Any]:
    """The columns of multiple choice; none for other tasks. `correct` is the metric acc where that is 0 or 1."""
    if not scored.choices:
        return {}
    scores = [response.score for response in responses]
    known = [score for score in scores if score is not None and not math.isnan(score)]
    best = scores.index(max(known)) if known and len(scores) == len(scored.choices) else None
    right = scored.values.get("acc", [None])[0]
    return {
        "choices": list(scored.choices),
        "chosen": None if best is None else scored.choices[best],
        "choice_logprobs": [score if score is not None and math.isfinite(score) else None for score in scores],
        "correct": right == 1.0 if right in (0.0, 1.0) else None,
    }


def _value(values: Sequence[Value], aggregation: str) -> Any:
    """A metric of this sample alone: the mean over repeats, or what a perplexity or another metric of pairs is here.

    A value that only the task's own aggregation can read is shown as text.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], Opaque):
        return _shown(known[0].value)
    try:
        if isinstance(known[0], (tuple, list)):
            value = float(metrics.get(aggregation)([known]).value)
        else:
            value = sum(value for value in known if isinstance(value, (int, float))) / len(known)
    except Exception:  # a third-party metric that needs more than one sample
        return None
    return value if math.isfinite(value) else None


def _shown(value: Any) -> Any:
    """A value that only its task can read, for people: numbers, texts and mappings of numbers as they are, others as
    text."""
    number = value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value
    if isinstance(number, (list, tuple)):
        return repr([_shown(part) for part in number])
    if isinstance(number, (bool, int, float)):
        return encode_float(float(number))
    if isinstance(number, dict) and all(isinstance(one, (int, float)) for one in number.values()):
        return {str(name): encode_float(float(one)) for name, one in number.items()}
    return number if isinstance(number, str) else repr(number)


def _total(counts: Sequence[float | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _plain(value: Value) -> Any:
    if value is None or isinstance(value, Opaque):
        return None if value is None else _shown(value.value)
    return [encode_float(part) for part in value] if isinstance(value, (tuple, list)) else encode_float(float(value))
