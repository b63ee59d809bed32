"""The names `lm-eval:NAME`: tasks, groups and tags of the installed lm-evaluation-harness. `_gen` lists the choices."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.errors import DataError, UnknownName
from mill.api.task import Benchmark, RenderSettings, Sample, Task
from mill.bridges.lm_eval import library
from mill.bridges.lm_eval.index import Entries, IndexEntry, listed, make_index, stored_index
from mill.bridges.lm_eval.library import compiled_once, one_line
from mill.bridges.lm_eval.scoring import LmEvalGroup
from mill.bridges.lm_eval.task import PREFIX, LmEvalTask, loading
from mill.compat import replaced
from mill.support.terminal import warn
from mill.tasks.load import Documents, is_pattern
from mill.tasks.multiple_choice import GENERATED, GeneratedChoiceTask, ListedQuestion, generated_benchmark
from mill.tasks.prompted import LETTERS, Doc, shots_from


@contextlib.contextmanager
def recorded_documents(by_task: Mapping[str, Documents]) -> Iterator[None]:
    """Inside this context lm-eval makes its tasks over these documents, by task name, instead of loading a dataset."""
    from lm_eval.api.task import ConfigurableTask, Task

    def download(task: Any, *_: Any, **__: Any) -> None:
        rows = _Rows(map(dict, by_task[task.config.task]))
        task.dataset = defaultdict(lambda: rows)  # which split was evaluated does not matter any more
        task.config.process_docs = None  # the recorded ones are processed already

    changed: dict[str, Any] = {"download": download, "fewshot_docs": lambda task: None}
    with replaced(Task, **changed), replaced(ConfigurableTask, **changed):
        yield


class _Rows(list[Any]):
    """Documents with the names of their columns, as a dataset has them."""

    @property
    def features(self) -> dict[str, None]:
        return dict.fromkeys(self[0]) if self else {}


_QUESTION_CUE = re.compile(r"^\s*Q:\s*(?!.*\nQ:)", re.DOTALL)  # of one question; others have examples in their text
_ANSWER_CUE = re.compile(r"\n\s*\w{1,12}\s?[:\uff1a]\s*$")  # a last line of one word: `Answer:`


def why_not_listed(task: LmEvalTask) -> str:
    """Why the choices of a task cannot be listed in its prompts; empty where they can."""
    if task.task.OUTPUT_TYPE != "multiple_choice" or not hasattr(task.task, "doc_to_choice"):
        return "it is not multiple choice"
    if task.modalities != {"text"}:
        return f"it shows {' and '.join(sorted(task.modalities - {'text'}))}"
    if getattr(task.task, "multiple_input", False):
        return "its choices complete the question in different ways, they are not answers to it"
    if getattr(task.task, "multiple_target", False):
        return "its questions have several right answers"
    if task.task.get_config("process_results") is not None:
        return "its own code scores the choices, so which of them is right is not known"
    return ""


class LmEvalQuestions:
    """Texts, choices and answers as lm-eval renders them. Examples are chosen as for mill's own tasks."""

    def __init__(self, task: LmEvalTask) -> None:
        self._task, self.name = task, task.name + GENERATED
        if reason := why_not_listed(task):
            raise DataError(f"{self.name}: {task.name} cannot be answered by a letter: {reason}")
        self._known: dict[int, tuple[Doc, ListedQuestion]] = {}

    def samples(self) -> Sequence[Sample]:
        return self._task.samples()

    def warnings(self) -> list[str]:
        return []

    @cached_property
    def _pool(self) -> list[Doc]:
        return self._task.example_docs()

    def shots(self, sample: Sample, settings: RenderSettings) -> list[Doc]:
        if not settings.n_shots:
            return []
        how = self._task.task.get_config("fewshot_config")
        sampler = how.get("sampler") if isinstance(how, dict) else getattr(how, "sampler", None)
        options: dict[str, Any] = {"fixed": sampler == "first_n", "task": self.name, "where": "the split of its examples"}
        return shots_from(self._pool, settings.n_shots, sample, settings, **options)

    def listed(self, doc: Doc) -> ListedQuestion:
        """lm-eval renders a document once; it is used for the prompt, the target and the score."""
        known = self._known.get(id(doc))
        if known is None or known[0] is not doc:
            known = self._known[id(doc)] = (doc, self._render(doc))
        return known[1]

    def _render(self, doc: Doc) -> ListedQuestion:
        from lm_eval.utils import apply_template

        inner = self._task.task
        with one_line(f"{self.name}: a question cannot be rendered"), compiled_once(), library.silent():
            text, target = inner.doc_to_text(doc), inner.doc_to_target(doc)
            choices = list(inner.doc_to_choice(doc))
            introduction = apply_template(str(inner.get_config("description") or ""), doc)
        if not all(isinstance(choice, (str, int, float)) for choice in choices):
            raise DataError(f"{self.name}: the choices of a question are not texts")
        if isinstance(target, list):
            raise DataError(f"{self.name}: a question has several right answers")
        texts = tuple(str(choice) for choice in choices)
        question = _ANSWER_CUE.sub("", _QUESTION_CUE.sub("", str(text).rstrip()))
        if not question.strip():
            raise DataError(f"{self.name}: a question has no text beside its choices")
        letters = tuple(re.sub(r"\W", "", choice).upper() for choice in texts)
        in_question = letters == tuple(LETTERS[: len(letters)])
        if in_question and not all(re.search(rf"(?<!\w){letter}[.):]", question) for letter in letters):
            raise DataError(f"{self.name}: the choices are letters, which the text of a question does not list")
        answer = _index(target, choices)
        return ListedQuestion(question, letters if in_question else texts, answer, in_question, introduction.strip())


def _index(target: Any, choices: list[Any]) -> int | None:
    """The index of the right choice as lm-eval finds it: a text among the choices, or an index."""
    if isinstance(target, str):
        return choices.index(target) if target in choices else None
    return target % len(choices) if isinstance(target, int) and -len(choices) <= target < len(choices) else None


class LmEvalSource:
    """Tasks of lm-eval, and those of the user's own folders (`--include_path`), which replace those of the same name.

    `NAME_gen`, where lm-eval has no such name, is NAME by the generated letter.
    """

    def __init__(self) -> None:
        self._folders: list[str] = []
        self._own: Entries = {}
        self._made: dict[str, tuple[list[Task], list[Benchmark]]] = {}

    @functools.cached_property
    def index(self) -> Entries:
        """Of lm-eval's own tasks; not read where the user's folders have all names."""
        return stored_index("lm-eval", library.tasks_folder(), library.version(), make_index)

    def add_folder(self, path: str) -> bool:
        if path in self._folders:
            return True
        problems: list[str] = []
        found = make_index(Path(path), problems)
        for problem in dict.fromkeys(problems):
            warn(f"a task file is left out: {problem}")
        if found:
            self._folders.append(path)
            self._own.update(found)
        return bool(found)

    def folders(self) -> Sequence[str]:
        return self._folders

    def _entry(self, name: str) -> IndexEntry | None:
        return self._own.get(name) or self.index.get(name)

    def _plain_name(self, name: str) -> str | None:
        """The name of what a name renders by letter; None for a name of lm-eval's own and for unknown ones."""
        plain = name.removesuffix(GENERATED)
        return plain if plain != name and self._entry(name) is None and self._entry(plain) is not None else None

    def _entries(self) -> Entries:
        return {**self.index, **self._own}

    def folders_of(self, name: str) -> list[Path]:
        """The folders to load for a name: its own and those of everything inside of it."""
        files, waiting, seen = set[str](), [name], set[str]()
        while waiting:
            entry = self._entry(current := waiting.pop())
            if entry is not None and current not in seen:
                seen.add(current)
                files.add(entry.file)
                waiting += entry.members
        return sorted({Path(file).parent for file in files if file})

    def names(self, pattern: str) -> list[str]:
        if not is_pattern(pattern):
            if self._entry(pattern) is None and self._plain_name(pattern) is None:
                raise UnknownName("task of lm-eval", pattern, self._entries(), "see `mill ls tasks lm-eval:`")
            return [pattern]
        known = self._entries()
        found = sorted(fnmatch.filter(known, pattern))
        if not found and pattern.endswith(GENERATED):
            found = [name + GENERATED for name in sorted(fnmatch.filter(known, pattern.removesuffix(GENERATED)))]
        if not found:
            raise DataError(f"no task of lm-eval matches {pattern!r}; see `mill ls tasks lm-eval:`")
        return found

    def tasks(self, name: str) -> tuple[list[Task], list[Benchmark]]:
        if name not in self._made:
            self._made[name] = self._load(name)
        return self._made[name]

    def recorded(self, name: str, documents: Mapping[str, Documents]) -> tuple[list[Task], list[Benchmark]]:
        by_letter = self._plain_name(name) is not None
        if self._entry(name) is None and not by_letter:
            raise DataError(f"{PREFIX}{name} is not known here: --include_path DIR names the folder of its YAML file")
        inner = {task.removeprefix(PREFIX): docs for task, docs in documents.items()}
        if by_letter:
            inner = {task.removesuffix(GENERATED): docs for task, docs in inner.items() if task.endswith(GENERATED)}
        with recorded_documents(inner):
            return self._load(name)

    def _load(self, name: str) -> tuple[list[Task], list[Benchmark]]:
        plain = self._plain_name(name)
        if plain is None:
            tasks, groups = self._load_plain(name)
            return list(tasks), groups
        tasks, groups = self._load_plain(plain)
        return [_by_letter(task) for task in tasks], [generated_benchmark(group) for group in groups]

    def _load_plain(self, name: str) -> tuple[list[LmEvalTask], list[Benchmark]]:
        folders = self.folders_of(name)
        own = f" from {folders[0]}" if name in self._own and folders else ""
        with loading(f"{PREFIX}{name}{own} cannot be loaded"):
            found = library.load(name, folders)
        if not found.tasks:
            raise DataError(f"{PREFIX}{name} has no tasks")
        tasks = [LmEvalTask(PREFIX + inner, task, found.random_state) for inner, task in found.tasks.items()]
        for inner, task in zip(found.tasks, tasks, strict=True):
            if self._entry(inner + GENERATED) is None and not why_not_listed(task):
                task.by_letter = task.name + GENERATED
        groups: list[Benchmark] = [
            LmEvalGroup(
                PREFIX + inner, tuple(PREFIX + member for member in found.members[inner]), group=group, prefix=PREFIX
            )
            for inner, group in found.groups.items()
        ]
        return tasks, groups

    def listed(self, text: str) -> list[tuple[str, str]]:
        return [(PREFIX + name, kind) for name, kind in listed(self._entries(), text)]


def _by_letter(task: LmEvalTask) -> Task:
    rendered = GeneratedChoiceTask(task.name + GENERATED, LmEvalQuestions(task))
    rendered.version = task.version
    return rendered
