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
"""The backend NAME. Replace the bodies of the three hooks by calls of your engine.

    mill eval NAME.py TASK
    mill conform NAME.py     (what the contract still requires)
"""

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model


@register_model("NAME")
class CLASS(MillModel):
    def __init__(self, path: str = "NAME", batch_size: int = 8):
        self._path = path
        self.batch_size = batch_size
        self.capabilities = ModelCapabilities(max_context_length=4096, supports_logprobs=True)

    @property
    def model_name(self) -> str:
        return self._path

    def load(self) -> None:
        """Load weights here: mill calls it after all other input is checked."""

    def _generate_batch(self, batch, gen_kwargs):
        """One text for each request. gen_kwargs has until, max_gen_toks, temperature and so on."""
        return [self._cut(request.text.upper(), gen_kwargs) for request in batch]

    def _loglikelihood_batch(self, batch):
        """(log-probability of the continuation, whether it is the greedy one) for each request."""
        return [(-float(len(request.continuation)), False) for request in batch]

    def _loglikelihood_rolling_single(self, request):
        """The log-probability of a whole text."""
        return -float(len(request.text))

    def _cut(self, text, gen_kwargs):
        for stop in gen_kwargs["until"]:
            text = text.split(stop)[0]
        return text[: gen_kwargs["max_gen_toks"]]
'''

BACKEND_TEST = '''\
"""pytest test_NAME.py"""

from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from NAME import CLASS


def test_it_generates_one_text_for_each_request():
    options = generation_options(max_gen_toks=5, until=["!"])
    requests = [Request(GENERATE, context=text, options=options) for text in ("hello world", "hi! there")]
    assert [response.text for response in CLASS().generate_until(requests)] == ["HELLO", "HI"]


def test_a_longer_continuation_is_less_likely():
    requests = [Request(LOGLIKELIHOOD, context="a", continuation=text) for text in (" b", " b c")]
    short, long = (response.score for response in CLASS().loglikelihood(requests))
    assert long < short < 0
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
