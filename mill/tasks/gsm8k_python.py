"""GSM8K with a Python interpreter: the model may compute with programs before it answers."""

from __future__ import annotations

from collections.abc import Sequence

from mill.api.registry import register_task
from mill.api.response import Response
from mill.api.task import Sample, Value
from mill.tasks.agent import AgentTask, FunctionTool, python_tool
from mill.tasks.gsm8k import GSM8K, last_number


@register_task("gsm8k_python")
class GSM8KPython(AgentTask, GSM8K):
    """The last number of the last answer counts."""

    kind = AgentTask.kind
    n_shots = 0
    takes_shots = False
    runs_code = True
    isolates_code = True
    description = (
        "Solve the problem. Use the tool python for calculations: its program must print the result. "
        "End with a line that holds #### and the number alone.\n\n"
    )
    generation = {"max_gen_toks": 512, "until": ("Question:",)}
    metrics = {**AgentTask.metrics}

    def prompt(self, sample: Sample) -> str:
        return self.question(sample.doc).removesuffix("\nAnswer:")

    def tools(self, sample: Sample) -> Sequence[FunctionTool]:
        return (python_tool(),)

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        return last_number(responses[-1].text or "")

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        right = float(self.extracted(sample, responses) == self.target(sample))
        return {"exact_match": right, **self.call_counts(responses)}
