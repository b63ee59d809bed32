"""Chat templates that fail or attack: one line before weights load, or an error of the one sample that they fail on."""

from __future__ import annotations

from pathlib import Path

import pytest

from mill.api.errors import CannotServe
from mill.api.message import Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from tests.models.hf.test_reasoning import TURNS, with_template

OPTIONS = generation_options(max_gen_toks=4)
TEMPLATES = {
    "a huge range": ("{% for a in range(10**12) %}{% endfor %}", "OverflowError: Range too big"),
    "a huge number of digits": ("{{ '%9999999999999d' % 1 }}", ""),
    "classes of Python": ("{{ ''.__class__.__mro__ }}", "SecurityError: access to attribute '__class__'"),
    "classes by a format": ("{{ ('{0.__class__.__mro__}').format(messages) + nope.nope }}", ""),
    "a change of the messages": ("{{ messages.append(1) }}", "SecurityError"),
    "an exception": ("{{ raise_exception('System role\\nnot supported') }}", "TemplateError: System role"),
    "a file": ("{% include '/etc/passwd' %}", "TypeError: no loader"),
    "another syntax": ("{% for %}", "TemplateSyntaxError"),
    "an unknown variable": ("{{ nope.nope }}", "UndefinedError: 'nope' is undefined"),
    "endless recursion": ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "RecursionError"),
}


def requests(*texts: str, kind: str = GENERATE) -> list[Request]:
    continuation = " yes" if kind == LOGLIKELIHOOD else ""
    options = OPTIONS if kind == GENERATE else {}
    return [Request(kind, (Message("user", text),), continuation, options=options) for text in texts]


@pytest.mark.parametrize(("template", "reason"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_that_fails_is_refused_before_the_run(
    template: str, reason: str, tiny_model: Path, tmp_path: Path
) -> None:
    model = with_template(tiny_model, tmp_path, template)
    with pytest.raises(CannotServe) as refused:
        model.check(requests("hello")[0])
    message = str(refused.value)
    assert message.startswith(f"{model.model_name}: the chat template cannot render the messages: {reason}")
    assert "\n" not in message and "root:" not in message


@pytest.mark.parametrize("kind", [GENERATE, LOGLIKELIHOOD])
def test_a_template_that_fails_on_one_request_fails_on_that_one_alone(kind: str, tiny_model: Path, tmp_path: Path) -> None:
    template = "{% if 'two' in messages[0].content %}{{ raise_exception('not two') }}{% endif %}" + TURNS
    model = with_template(tiny_model, tmp_path, template)
    given = requests("one", "two", "three", "two and two", kind=kind)
    model.check(given[0])
    found = getattr(model, kind)(given)
    error = "the chat template cannot render the messages: TemplateError: not two"
    assert [response.error for response in found] == [None, error, None, error]
    alone = getattr(model, kind)([given[0]])
    assert (found[0].text, found[0].score) == (alone[0].text, pytest.approx(alone[0].score, abs=1e-5))
