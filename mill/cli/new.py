"""For those who add to mill: `mill new task|backend NAME`, a starting file and its test, and `mill conform SPEC`."""

from __future__ import annotations

import importlib.util
import keyword
import math
import re
from pathlib import Path
from typing import Any

import click

from mill.api.errors import SpecError
from mill.api.registry import models, tasks
from mill.cli.options import given_options, options
from mill.execute.conformance import conform
from mill.models.spec.open import open_model
from mill.models.spec.parse import make_spec, packaged_configs
from mill.options.definitions import EvalOptions
from mill.options.option import shown
from mill.report.tables import print_table
from mill.support.files import write_atomically
from mill.support.terminal import echo
from mill.tasks.load import load_builtin, load_files

# The starting files: NAME and CLASS are replaced.
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

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model
from mill.api.response import Response

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LIKELY, UNLIKELY = math.log(0.5), math.log(0.5 / 0x10FFFF)  # of the next letter, and of each other character


@register_model("NAME")
class CLASS(MillModel):
    def __init__(self, path: str = "NAME", batch_size: int = 8):
        self._path, self.batch_size = path, batch_size
        self.capabilities = ModelCapabilities(supports_logprobs=True)

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
        return [self._score(request.text, request.continuation) for request in batch]

    def _loglikelihood_rolling_single(self, request):
        """The log-probability of a whole text."""
        return self._score("", request.text)[0]

    def _generate(self, request, gen_kwargs):
        draw = random.Random(request.seed)  # the same for the same request, also in another batch
        counts = {"prompt_tokens": len(request.text)}
        text = ""
        while len(text) < gen_kwargs["max_gen_toks"]:
            sampled = gen_kwargs["temperature"] and draw.random() < 0.5
            text += draw.choice(ALPHABET) if sampled else self._greedy(request.text + text)
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

TEMPLATES = {"task": (TASK, TASK_TEST), "backend": (BACKEND, BACKEND_TEST)}

NEXT = {
    "task": "mill eval MODEL {file}",
    "backend": "mill conform {file}; mill eval {file} gsm8k --limit 3",
}


@click.command("new")
@click.argument("what", metavar="task|backend", type=click.Choice([*TEMPLATES, "metric"]))
@click.argument("name")
def command(what: str, name: str) -> int:
    """Write NAME.py, a task or backend that runs as it is, and test_NAME.py into the current folder.

    \b
    Examples:
      mill new task my_task && mill eval org/name my_task.py && pytest test_my_task.py
      mill new backend my_engine && mill conform my_engine.py
    """
    if what == "metric":
        raise SpecError("mill new metric was removed: CONTRIBUTING.md has a metric in a few lines")
    _check_name(what, name)
    files = [Path(f"{name}.py"), Path(f"test_{name}.py")]
    for file in files:
        if file.exists() or file.is_symlink():
            raise SpecError(f"{file} exists: choose another name, or move it away")
    title = "".join(part.capitalize() for part in name.split("_"))
    for file, template in zip(files, TEMPLATES[what], strict=True):
        write_atomically(file, re.sub(r"(?<![A-Z])NAME\b", name, re.sub(r"\bCLASS\b", title, template)))
        echo(f"written: {file}")
    echo(f"try: {NEXT[what].format(file=files[0])}; pytest {files[1]}")
    return 0


def _check_name(what: str, name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) or keyword.iskeyword(name) or name.startswith("test_"):
        raise SpecError(f"{shown(name)}: a name has at most 64 lower-case letters, digits and _, such as my_{what}")
    load_builtin()
    if name in (tasks if what == "task" else models) or (what == "backend" and name in packaged_configs()):
        raise SpecError(f"there is a {what} {name} already: choose another name")
    if (importlib.util.find_spec(name) is not None and not Path(f"{name}.py").exists()) or name == "conftest":
        raise SpecError(f"{name} is a Python module, which {name}.py would hide: choose another name")


@click.command("conform")
@click.argument("spec")
@click.option("--reference", default=None, help="A model with the same weights; its log-likelihoods are the reference.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1e9),
    default=1e-3,
    show_default=True,
    help="Accepted difference in nats per token.",
)
@options(("wait", "base_url", "no_remote_code", "task_paths"))
@click.pass_context
def conform_command(ctx: click.Context, /, spec: str, reference: str | None, tolerance: float, **values: Any) -> int:
    """Run the checks that every backend must pass on the model SPEC and print a table. The exit code is 1 if one fails.

    \b
    Examples:
      mill conform "hf[path=./my-model,dtype=float32]"
      mill conform "llama-cpp[base_url=http://127.0.0.1:8080]" --reference ./my-model --tolerance 0.1
    """
    if math.isnan(tolerance):  # which is in every range
        raise SpecError("--tolerance: nan is not a number")
    given = EvalOptions(**given_options(ctx, values, EvalOptions))
    load_files(tuple(given.task_paths))
    model = open_model(make_spec(spec, base_url=given.base_url or ""))
    other = open_model(reference) if reference else None
    for opened in (model, other):
        if opened is not None:
            opened.ready(given.wait)
            opened.load()
    verdicts = conform(model, other, tolerance)
    for opened in (model, other):
        if opened is not None:
            opened.clean()  # the processes of an engine must end before this one
    rows = [[verdict.check, verdict.outcome, verdict.detail] for verdict in verdicts]
    print_table(f"{model.model_name} ({type(model).__name__})", ("check", "outcome", "detail"), rows)
    failed = sum(verdict.outcome == "fail" for verdict in verdicts)
    skipped = sum(verdict.outcome == "skip" for verdict in verdicts)
    echo(f"{len(verdicts) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)
