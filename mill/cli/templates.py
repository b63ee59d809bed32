"""The starting files of `mill new`. NAME and CLASS are replaced."""

from __future__ import annotations

TASK = '''\
"""The task NAME: questions with one right answer, scored by exact match.

    mill eval MODEL NAME.py
"""

from mill.api.registry import register_task
from mill.api.request import GENERATE, Request
from mill.api.task import Sample, Task, TaskType

QUESTIONS = [
    ("What is 2 + 2?", "4"),
    ("What is 7 * 6?", "42"),
    ("What is 9 - 4?", "5"),
]


@register_task("NAME")
class CLASS(Task):
    task_type = TaskType.GENERATIVE_QA
    metrics = {"exact_match": "mean"}
    version = 1  # increase it when scores are no longer comparable with earlier ones

    def samples(self):
        return [Sample(str(index), {"question": q, "answer": a}) for index, (q, a) in enumerate(QUESTIONS)]

    def requests(self, sample, settings):
        # frame() adds the system prompt or chat messages of the run, options() its --gen_kwargs and seed.
        context = settings.frame(f"Question: {sample.doc['question']}\\nAnswer:")
        options = settings.options(max_gen_toks=16, until=["\\n"])
        return [Request(GENERATE, context=context, options=options, repeats=settings.repeats)]

    def target(self, sample):
        return sample.doc["answer"]

    def score(self, sample, responses):
        return {"exact_match": float((responses[0].text or "").strip() == self.target(sample))}
'''

TASK_TEST = '''\
"""pytest test_NAME.py"""

from mill.api.response import Response
from mill.api.task import RenderSettings
from NAME import CLASS


def test_a_request_contains_the_question():
    task = CLASS("NAME")
    for sample in task.samples():
        (request,) = task.requests(sample, RenderSettings())
        assert sample.doc["question"] in request.text


def test_the_right_answer_scores_one_and_another_zero():
    task = CLASS("NAME")
    sample = task.samples()[0]
    assert task.score(sample, [Response(text=" 4")]) == {"exact_match": 1.0}
    assert task.score(sample, [Response(text=" 5")]) == {"exact_match": 0.0}
'''

BACKEND = '''\
"""The backend NAME: a toy model that continues the alphabet; its tokens are characters. Call your engine instead.

    mill eval NAME.py TASK
    mill conform NAME.py     (the contract of backends, which this file fulfils)
"""

import math
import random
import sys

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model
from mill.api.response import Response

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
WINDOW = 4096  # tokens of prompt and answer together
LIKELY, UNLIKELY = math.log(0.5), math.log(0.5 / sys.maxunicode)  # of the next letter, and of each other character


@register_model("NAME")
class CLASS(MillModel):
    def __init__(self, path: str = "NAME", batch_size: int = 8):
        self._path = path
        self.batch_size = batch_size
        self.capabilities = ModelCapabilities(max_context_length=WINDOW, supports_logprobs=True)

    @property
    def model_name(self) -> str:
        return self._path

    def load(self) -> None:
        """Load weights here: mill calls it after all other input is checked."""

    def _generate_batch(self, batch, gen_kwargs):
        """A text or a Response for each request. gen_kwargs has until, max_gen_toks, temperature and so on."""
        return [self._generate(request, gen_kwargs) for request in batch]

    def _loglikelihood_batch(self, batch):
        """(log-probability of the continuation, whether it is the greedy one) for each request, or a Response."""
        too_long = Response(error=f"the continuation is longer than {WINDOW} tokens")
        return [
            self._score(request.text, request.continuation) if len(request.continuation) < WINDOW else too_long
            for request in batch
        ]

    def _loglikelihood_rolling_single(self, request):
        """The log-probability of a whole text."""
        return self._score("", request.text)[0]

    def _generate(self, request, gen_kwargs):
        limit = gen_kwargs["max_gen_toks"]
        prompt = request.text[-max(1, WINDOW - limit) :]
        counts = {"prompt_tokens": len(prompt), "truncated_tokens": len(request.text) - len(prompt)}
        draw = random.Random(request.seed)  # the same for the same request, also in another batch
        text = ""
        while len(text) < limit:
            sampled = gen_kwargs["temperature"] and draw.random() < 0.5
            text += draw.choice(ALPHABET) if sampled else self._greedy(prompt + text)
            for stop in gen_kwargs["until"]:
                if text.endswith(stop):
                    return Response(text=text.removesuffix(stop), finish_reason="stop", output_tokens=len(text), **counts)
        return Response(text=text, finish_reason="length", output_tokens=len(text), **counts)

    def _score(self, context, continuation):
        whole = context + continuation
        greedy = [self._greedy(whole[:end]) == whole[end] for end in range(len(context), len(whole))]
        return sum(LIKELY if likely else UNLIKELY for likely in greedy), all(greedy)

    def _greedy(self, text):
        """The most likely character after a text."""
        return ALPHABET[(ALPHABET.find(text[-1:].lower() or "z") + 1) % len(ALPHABET)]
'''

BACKEND_TEST = '''\
"""pytest test_NAME.py"""

from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from NAME import CLASS


def test_it_generates_one_text_for_each_request():
    options = generation_options(max_gen_toks=5, until=["z"])
    requests = [Request(GENERATE, context=text, options=options) for text in ("a", "The letter W")]
    assert [response.text for response in CLASS().generate_until(requests)] == ["bcdef", "xy"]


def test_the_next_letter_is_more_likely_than_another():
    requests = [Request(LOGLIKELIHOOD, context="a", continuation=text) for text in ("b", "c")]
    next_letter, other = (response.score for response in CLASS().loglikelihood(requests))
    assert other < next_letter < 0
'''

METRIC = '''\
"""The metric NAME: the median of the sample values.

A task names it as `metrics = {"exact_match": "NAME"}`:

    mill eval MODEL TASK --task_paths NAME.py,TASK.py
"""

import statistics

from mill.api.registry import register_metric
from mill.metrics import Estimate


@register_metric("NAME")
def NAME(samples):
    """One estimate from all samples. Each sample has a list with one value for each repeat."""
    values = [statistics.fmean(repeats) for repeats in samples]
    return Estimate(value=statistics.median(values), stderr=None, low=None, high=None, n=len(values))
'''

METRIC_TEST = '''\
"""pytest test_NAME.py"""

from NAME import NAME


def test_the_median_over_samples_of_the_mean_over_repeats():
    estimate = NAME([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    assert (estimate.value, estimate.n) == (0.5, 3)
'''

TEMPLATES = {"task": (TASK, TASK_TEST), "backend": (BACKEND, BACKEND_TEST), "metric": (METRIC, METRIC_TEST)}
