"""The contract of backends as checks that run on an opened model: `mill conform`.

A check takes the model and returns a detail, or raises: Broken with what the backend does wrong, NotApplicable with why it
does not apply. Tolerances allow for engines that compute in another order.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mill.api.errors import CannotServe
from mill.api.message import IMAGE, Labels, Media, Message
from mill.api.model import MillModel, has_chat_template, run_requests
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, ZERO_SHOT, Request, generation_options
from mill.api.response import Response
from mill.api.tools import Tool, ToolCall
from mill.support.terminal import describe
from mill.tasks.shapes import PAIRS, class_name, draw

PROMPT = "The capital of France is"
PROMPTS = (PROMPT, "One, two, three, four,", "Water boils at", "Once upon a time there was a", "2 + 2 =", "A B C D E F")
NEAR = 0.02  # nats a token: quantized engines round differently in another batch


class Broken(Exception):
    """The backend breaks the contract."""


class NotApplicable(Exception):
    """The check does not apply to this backend."""


@dataclass(frozen=True)
class ConformanceResult:
    """`outcome` is pass, fail or skip."""

    check: str
    outcome: str
    detail: str


Check = Callable[[MillModel], str]


def conform(model: MillModel, reference: MillModel | None = None, tolerance: float = 1e-3) -> list[ConformanceResult]:
    """Run every check; a reference model turns on the comparison of log-likelihoods."""
    checks: dict[str, Check] = dict(CHECKS)
    if reference is not None:
        checks["log-likelihoods of the reference"] = lambda tested: compare(tested, reference, tolerance)
    return [_run_check(name, check, model) for name, check in checks.items()]


def _run_check(name: str, check: Check, model: MillModel) -> ConformanceResult:
    try:
        return ConformanceResult(name, "pass", check(model))
    except NotApplicable as why:
        return ConformanceResult(name, "skip", str(why))
    except Broken as why:
        return ConformanceResult(name, "fail", str(why))
    except Exception as error:
        return ConformanceResult(name, "fail", f"raised {describe(error)}")


def responses(model: MillModel, kind: str, requests: Sequence[Request]) -> list[Response]:
    """In the order of the requests, without progress."""
    by_key = {request.key: response for request, response in run_requests(model, kind, requests)}
    return [by_key[request.key] for request in requests]


def generate(model: MillModel, *contexts: str | tuple[Message, ...], draw: int = 0, **options: object) -> list[Response]:
    if not model.capabilities.serves(GENERATE):
        raise NotApplicable("does not generate text")
    decoding = generation_options(**{"max_gen_toks": 12, **options})
    requests = [Request(GENERATE, context, options=decoding, draw=draw) for context in contexts]
    return responses(model, GENERATE, requests)


def score(model: MillModel, *pairs: tuple[str, str]) -> list[Response]:
    if not model.capabilities.serves(LOGLIKELIHOOD):
        raise NotApplicable("gives no log-probabilities")
    requests = [Request(LOGLIKELIHOOD, context, continuation) for context, continuation in pairs]
    return responses(model, LOGLIKELIHOOD, requests)


def text_of(response: Response) -> str:
    if response.error is not None or response.text is None:
        raise Broken(f"no answer: {response.error}")
    return response.text


def score_of(response: Response) -> float:
    if response.error is not None or response.score is None:
        raise Broken(f"no score: {response.error}")
    return response.score


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise Broken(message)


def identity(model: MillModel) -> str:
    first = json.dumps(model.identity(), sort_keys=True)
    expect(first == json.dumps(model.identity(), sort_keys=True), "identity() changes between two calls")
    expect(bool(model.model_name), "model_name is empty")
    return model.model_name


def answers(model: MillModel) -> str:
    (answer,) = generate(model, PROMPT)
    text = text_of(answer)
    expect(answer.finish_reason in (None, "stop", "length"), f"finish_reason is {answer.finish_reason!r}")
    return repr(text[:40])


def limits(model: MillModel) -> str:
    (answer,) = generate(model, PROMPTS[3], max_gen_toks=3)
    text = text_of(answer)
    count = answer.output_tokens
    if count is None and answer.tokens is not None:
        count = len(answer.tokens)
    if count is None:
        longer = text_of(generate(model, PROMPTS[3], max_gen_toks=24)[0])
        expect(text != longer or len(text.split()) <= 3, f"requested 3 tokens, got as many as for 24: {text[:40]!r}")
        raise NotApplicable("the backend does not report how many tokens it generated")
    expect(count <= 3, f"requested 3 tokens, got {count}")
    return f"{count} of 3 tokens, {answer.finish_reason}"


def stops(model: MillModel) -> str:
    (free,) = generate(model, PROMPTS[3], max_gen_toks=24)
    text = text_of(free)
    middle = [text[start : start + 3] for start in range(len(text) // 3, len(text) - 2)]
    stop = next((part for part in middle if part.isascii() and part.strip()), None)
    if stop is None:
        raise NotApplicable("the model's answer has no substring to stop at")
    (stopped,) = generate(model, PROMPTS[3], max_gen_toks=24, until=[stop])
    expect(stop not in text_of(stopped), f"the answer contains its stop string {stop!r}")
    expect(stopped.finish_reason in (None, "stop"), f"finish_reason is {stopped.finish_reason!r}, not stop")
    return f"stopped at {stop!r}"


def unicode_text(model: MillModel) -> str:
    for answer in generate(model, "Grüße, 世界! 👩‍👩‍👧 שלום", "naïve café ½ Ω", max_gen_toks=6):
        text_of(answer).encode("utf-8")
    return "two prompts answered"


def empty_prompt(model: MillModel) -> str:
    (answer,) = generate(model, "", max_gen_toks=4)
    return "answered" if answer.error is None else f"an error of its request: {answer.error[:60]}"


def long_prompt(model: MillModel) -> str:
    window = model.capabilities.max_context_length
    if not window:
        raise NotApplicable("the context length is not known")
    (answer,) = generate(model, "one two three four " * window, max_gen_toks=4)
    if answer.error is None:
        expect(answer.truncated_tokens > 0, "a prompt longer than the context was cut silently")
        return f"{answer.truncated_tokens} tokens cut and counted"
    return f"an error of its request: {answer.error[:60]}"


def order(model: MillModel) -> str:
    together = [text_of(answer) for answer in generate(model, *PROMPTS)]
    alone = [text_of(generate(model, prompt)[0]) for prompt in PROMPTS]
    same = sum(a == b for a, b in zip(together, alone, strict=True))
    expect(same >= len(PROMPTS) - 1, f"only {same} of {len(PROMPTS)} answers are the same together and alone")
    return f"{same} of {len(PROMPTS)} the same together and alone"


def repeatable(model: MillModel) -> str:
    first, second = (text_of(generate(model, PROMPTS[3], max_gen_toks=16)[0]) for _ in range(2))
    expect(first == second, f"greedy answers differ: {first!r} and {second!r}")
    return "greedy twice the same"


def sampled(model: MillModel) -> str:
    draws = {text_of(generate(model, PROMPTS[3], draw=draw, temperature=1.0, seed=1)[0]) for draw in range(4)}
    expect(len(draws) > 1, "four sampled answers are all the same")
    return f"{len(draws)} different of 4"


def dialog(model: MillModel) -> str:
    if not has_chat_template(model):
        raise NotApplicable("no chat template")
    turns = (Message("user", "My name is Ada."), Message("assistant", "Hello Ada!"), Message("user", "What is my name?"))
    return repr(text_of(generate(model, turns)[0])[:40])


def begun_answer(model: MillModel) -> str:
    """The first words of the model's own answer, given as the start of it, are continued by the rest."""
    if not has_chat_template(model):
        raise NotApplicable("no chat template")
    question = Message("user", "Say the days of the week.")
    answer = text_of(generate(model, (question,), max_gen_toks=24)[0])
    begun, space, rest = answer.partition(" ")
    for _ in range(3):
        word, space, rest = rest.partition(" ")
        begun = f"{begun} {word}"
    if not space:
        raise NotApplicable("the model's answer has too few words to begin it")
    request = Request(GENERATE, (question, Message("assistant", begun)), options=generation_options(max_gen_toks=6))
    try:
        model.check(request)
    except CannotServe as why:
        raise NotApplicable(str(why)) from why
    text = text_of(responses(model, GENERATE, [request])[0])
    expect(text[:8] == f" {rest}"[:8], f"{begun!r} is continued with {text!r}, not with {rest!r}")
    return f"{begun!r} and {text!r}"


def tools(model: MillModel) -> str:
    """A model may call badly or not at all. Its calls must be recorded whole, and the dialog must continue with results."""
    if not model.capabilities.supports_tools:
        raise NotApplicable("takes no tools")
    if not has_chat_template(model):
        raise NotApplicable("has no chat template")
    number = {"type": "number"}
    add = Tool("add", "Adds two numbers.", {"type": "object", "properties": {"a": number, "b": number}})
    question = Message("user", "What is 2 + 3? Use the tool.")
    call = ToolCall("add", {"a": 2, "b": 3}, id="call00000")
    result = Message("tool", "5", tool_call_id=call.id, name=call.name)
    dialogs = [(question,), (question, Message("assistant", "", tool_calls=(call,)), result)]
    options = generation_options(max_gen_toks=24)
    requests = [Request(MULTI_ROUND, dialog, options=options, tools=(add,)) for dialog in dialogs]
    try:
        model.check(requests[0])
    except CannotServe as why:  # such as a server without a parser of calls
        raise NotApplicable(str(why)) from why
    found = responses(model, MULTI_ROUND, requests)
    for response in found:
        text_of(response)
        stored = Response.from_dict(json.loads(json.dumps(response.to_dict()))).tool_calls
        expect(stored == response.tool_calls, f"the calls {response.tool_calls} are recorded as {stored}")
    return f"{len(found[0].tool_calls)} calls"


def greedy_flag(model: MillModel) -> str:
    text = text_of(generate(model, PROMPT, max_gen_toks=1)[0])
    if not text.strip():
        raise NotApplicable("the greedy token is white space")
    greedy, other = score(model, (PROMPT, text), (PROMPT, " xylophone"))
    expect(bool(greedy.is_greedy), f"{text!r} is what the model generates, yet is_greedy is {greedy.is_greedy}")
    expect(other.is_greedy is False, f"is_greedy of an unlikely continuation is {other.is_greedy}")
    expect(score_of(greedy) > score_of(other), "an unlikely continuation scores higher")
    return f"{text!r} {score_of(greedy):.3f}"


def chain(model: MillModel) -> str:
    whole, first, second = map(score_of, score(model, (PROMPT, " Paris."), (PROMPT, " Paris"), (PROMPT + " Paris", ".")))
    expect(math.isclose(whole, first + second, abs_tol=2 * NEAR), f"{whole:.4f} is not {first:.4f} + {second:.4f}")
    return f"{whole:.4f} = {first:.4f} + {second:.4f}"


def choices_together(model: MillModel) -> str:
    pairs = [(prompt, f" {word}") for prompt in PROMPTS[:3] for word in ("Paris", "five", "100")]
    together = list(map(score_of, score(model, *pairs)))
    alone = [score_of(score(model, pair)[0]) for pair in pairs]
    worst = max(abs(a - b) for a, b in zip(together, alone, strict=True))
    expect(worst <= 3 * NEAR, f"log-probabilities differ by {worst:.4f} together and alone")
    return f"largest difference {worst:.1e}"


def long_continuation(model: MillModel) -> str:
    window = model.capabilities.max_context_length
    if not window:
        raise NotApplicable("the context length is not known")
    long, short = score(model, (PROMPT, " word" * (window + 8)), (PROMPT, " Paris"))
    expect(long.error is not None or long.truncated_tokens > 0, "a continuation longer than the context got a score")
    score_of(short)
    return "an error of its request, and the others are answered"


def answer_tokens(model: MillModel) -> str:
    (answer,) = generate(model, PROMPT, max_gen_toks=4, logprobs=5)
    text = text_of(answer)
    if answer.tokens is None:
        raise NotApplicable("gives no log-probabilities of its answers")
    expect(len(answer.tokens) > 0, "an answer without tokens")
    for token in answer.tokens:
        expect(bool(token.top) and token.top[0][1] <= 0, f"the top_logprobs at {token.text!r} are {token.top[:2]}")
        expect(token.top[0][0] == token.name, f"greedy decoding gave {token.name!r}, yet {token.top[0][0]!r} is likelier")
    if not model.capabilities.serves(LOGLIKELIHOOD) or "\ufffd" in text:
        return f"{len(answer.tokens)} tokens"
    (scored,) = score(model, (PROMPT, text))
    total, whole = sum(token.logprob for token in answer.tokens), score_of(scored)
    if scored.output_tokens != len(answer.tokens):
        return f"{len(answer.tokens)} tokens, {scored.output_tokens} when tokenized again"
    expect(math.isclose(total, whole, abs_tol=4 * NEAR), f"tokens add up to {total:.4f}, the answer scores {whole:.4f}")
    return f"{len(answer.tokens)} tokens, {total:.3f} in all"


def ranking(model: MillModel) -> str:
    if not model.capabilities.serves(ZERO_SHOT):
        raise NotApplicable("ranks no labels")
    labels = Labels(tuple(class_name(*pair) for pair in PAIRS[:12]))
    images = [Media(IMAGE, draw(colour, shape, random.Random(shape))) for colour, shape in PAIRS[:4]]
    requests = [Request(ZERO_SHOT, (Message("user", (image,)),), labels=labels) for image in images]
    together = responses(model, ZERO_SHOT, requests)
    alone = [responses(model, ZERO_SHOT, [request])[0] for request in requests]
    for batched, single in zip(together, alone, strict=True):
        expect(batched.error is None and batched.label in labels.names, f"no label: {batched.error or batched.label}")
        scores = [score for _, score in batched.ranking or ()]
        expect(scores == sorted(scores, reverse=True), "the ranking is not in the order of its scores")
        expect(batched.label == single.label, f"{batched.label} together, {single.label} alone")
    return ", ".join(str(response.label) for response in together)


def document(model: MillModel) -> str:
    if not model.capabilities.serves(ROLLING):
        raise NotApplicable("gives no log-probabilities")
    text = "The cat sat on the mat. The dog lay by the door."
    (rolling,) = responses(model, ROLLING, [Request(ROLLING, text)])
    whole = score_of(score(model, ("", text))[0])
    expect(math.isclose(score_of(rolling), whole, abs_tol=20 * NEAR), f"rolling {rolling.score} but whole {whole}")
    return f"{score_of(rolling):.3f}"


def compare(model: MillModel, reference: MillModel, tolerance: float) -> str:
    """The same pairs through both; returns the largest difference of a token."""
    pairs = [(prompt, f" {word}") for prompt in PROMPTS for word in ("Paris", "five", "100 degrees", "little girl named")]
    tested, expected = score(model, *pairs), score(reference, *pairs)
    differences = [
        abs(score_of(a) - score_of(b)) / max(1, b.output_tokens or 1) for a, b in zip(tested, expected, strict=True)
    ]
    worst = max(differences)
    expect(worst <= tolerance, f"log-probabilities differ by up to {worst:.4f} nats a token (allowed: {tolerance})")
    return f"largest difference {worst:.1e} nats a token over {len(pairs)} continuations"


CHECKS: Sequence[tuple[str, Check]] = (
    ("identity", identity),
    ("generation", answers),
    ("token limit", limits),
    ("stop strings", stops),
    ("unicode", unicode_text),
    ("empty prompt", empty_prompt),
    ("over-long prompt", long_prompt),
    ("answers belong to their prompts", order),
    ("greedy is repeatable", repeatable),
    ("draws differ", sampled),
    ("dialog", dialog),
    ("answer begun in the prompt", begun_answer),
    ("tools", tools),
    ("greedy flag", greedy_flag),
    ("log-probabilities add up", chain),
    ("choices together and alone", choices_together),
    ("over-long continuation", long_continuation),
    ("document", document),
    ("tokens of an answer", answer_tokens),
    ("image labels", ranking),
)
