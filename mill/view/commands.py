"""The command that computes one sample again."""

from __future__ import annotations

import shlex
from typing import Any

from mill.view.run_info import MILL, RunInfo

# Settings that are options of `mill eval` under the same name, with a value.
_OPTIONS = ("n_shots", "seed", "system_prompt", "repeats", "reasoning_effort", "max_rounds", "permutations")
_SWITCHES = ("apply_chat_template", "fewshot_as_multiturn", "same_shots", "cot", "shuffle_choices")


def reproducing_command(run: RunInfo, task: str, sample: str) -> str:
    """Computes the sample in a folder of its own, so that nothing recorded is used. Empty for runs of other tools, and for
    texts that only a check scores."""
    if run.tool != MILL or run.of_check or "," in sample or not run.manifest.get("model"):
        return ""
    requested = run.manifest["tasks"].get(task, {}).get("requested") or task
    words = ["mill", "eval", _spec(run), requested, *_options(run.settings)]
    return shlex.join([*words, "--sample_ids", sample, "--output_dir", "one-sample", "--fresh"])


def _spec(run: RunInfo) -> str:
    """A relative path of the model becomes absolute, so that the command works in any folder."""
    model = run.manifest["model"]
    given = dict(model.get("arguments") or {})
    if run.model_path is not None:
        given["path"] = run.model_path.absolute()
    arguments = ",".join(f"{name}={_value(value)}" for name, value in given.items())
    return f"{model.get('backend', '')}[{arguments}]"


def _value(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f'"{text}"' if any(mark in text for mark in ",[]\"'") else text


def _options(settings: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name in _OPTIONS:
        if settings.get(name) is not None:
            words += [f"--{name}", str(settings[name])]
    for name in _SWITCHES:
        if settings.get(name) is not None:
            words.append(f"--{name}" if settings[name] else f"--no_{name}")
    generation = settings.get("gen_kwargs") or {}
    if generation:
        words += ["--gen_kwargs", ",".join(f"{name}={_value(value)}" for name, value in generation.items())]
    return words
