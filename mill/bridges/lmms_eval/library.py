"""The installed lmms-eval: where it is, and its tasks and groups. Only its task package is imported."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mill.api.errors import DataError, MillError, install_command
from mill.api.message import AUDIO, Media
from mill.bridges.lm_eval.library import Loaded, local_first, one_line, random_numbers
from mill.bridges.lm_eval.library import quiet as quiet_logging
from mill.bridges.lm_eval.library import version as version_of
from mill.compat import replaced
from mill.models.media.decode import load_audio


def decode_with_soundfile() -> None:
    """From now on, where torchcodec is not installed, audio is a dictionary as in earlier versions of `datasets`."""
    if importlib.util.find_spec("torchcodec") is None and importlib.util.find_spec("soundfile") is not None:
        from datasets import Audio

        Audio.decode_example = _decoded


def _decoded(feature: Any, value: Any, token_per_repo_id: Any = None) -> Any:
    if not isinstance(value, Mapping) or "array" in value:
        return value
    import soundfile

    encoded, path = value.get("bytes"), value.get("path")
    rate = feature.sampling_rate or soundfile.info(io.BytesIO(encoded) if encoded is not None else path).samplerate
    samples = load_audio(Media(AUDIO, encoded if encoded is not None else path), rate)
    return {"path": path, "array": samples, "sampling_rate": int(rate)}


PREFIX = "lmms-eval:"
_INSTALL = f"{install_command('lmms-eval')} && pip install --no-deps lmms-eval==0.7.3"
_NO_KEY = "none"  # some task files refuse to be imported without an OPENAI_API_KEY


def tasks_folder() -> Path:
    """The folder of lmms-eval's YAML files, found without importing it."""
    spec = importlib.util.find_spec("lmms_eval")
    if spec is None or spec.origin is None:
        raise MillError(f"a task {PREFIX}NAME needs the package lmms_eval: {_INSTALL}")
    return Path(spec.origin).parent / "tasks"


def version() -> str:
    return version_of("lmms_eval", (0, 7))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No output of lmms-eval: it writes through loguru, beside what other packages write through logging."""
    from loguru import logger

    with quiet_logging():
        logger.disable("")
        try:
            yield
        finally:
            logger.enable("")


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """lmms-eval's code runs here with local data first, without its output, and with one line for each failure."""
    from PIL import ImageFile

    # Importing lmms-eval lets the whole process read images that end too early; only its tasks are to.
    truncated = replaced(ImageFile, LOAD_TRUNCATED_IMAGES=True)
    with one_line(what), quiet(), local_first(), environment(), truncated:
        yield


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """What task files expect in the environment: some are not imported, or score nothing, without a key."""
    from huggingface_hub.constants import HF_HOME

    given = {"HF_HOME": HF_HOME, "OPENAI_API_KEY": _NO_KEY}
    added = {name: value for name, value in given.items() if not os.environ.get(name)}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def load(
    name: str,
    index: Mapping[str, dict[str, Any]],
    model_name: str | None,
    check: Callable[[str, Mapping[str, Any]], None],
) -> tuple[Loaded, dict[str, Any]]:
    """A task, group or tag, and of each group its part of lmms-eval's nested dictionaries. `model_name` selects prompts that
    lmms-eval has for one of its models; `check` gets the configuration of each task before its data are loaded: first
    without its functions, which takes no import, then with them."""
    from lmms_eval.api.task import ConfigurableTask
    from lmms_eval.tasks import TaskManager
    from lmms_eval.utils import load_yaml_config

    class Manager(TaskManager):  # type: ignore[misc]
        """lmms-eval's own, with the index that is there already."""

        def initialize_tasks(self, *given: Any, **options: Any) -> dict[str, dict[str, Any]]:
            return dict(index)

        def _get_config(self, inner: str) -> Any:
            path = self._get_yaml_path(inner)
            if path != -1:
                _check(inner, load_yaml_config(path, mode="simple"))  # before the task's own code is imported
            config = super()._get_config(inner)
            _check(inner, config)
            return config

    def _check(inner: str, config: Mapping[str, Any]) -> None:
        if isinstance(config.get("task"), str):
            check(inner, config)

    decode_with_soundfile()
    # It tries a download five times and hides why it failed; `datasets` has tried again by itself already.
    once_only = replaced(ConfigurableTask, download=ConfigurableTask.download.__wrapped__)
    with once_only, random_numbers():
        manager = Manager(include_defaults=False, model_name=model_name)
        loaded, nested = Loaded(), dict[str, Any]()
        _flatten(manager.load_task_or_group([name]), loaded, nested)
    if not loaded.tasks:
        raise DataError(f"{PREFIX}{name} has no tasks")
    return loaded, nested


def _flatten(found: Mapping[Any, Any], loaded: Loaded, nested: dict[str, Any]) -> None:
    """lmms-eval nests its groups: they are keys, their members values."""
    for key, value in found.items():
        if isinstance(value, Mapping):
            loaded.groups[key.group_name] = key
            loaded.members[key.group_name] = [str(getattr(member, "group_name", member)) for member in value]
            nested[key.group_name] = {key: value}
            _flatten(value, loaded, nested)
        else:
            loaded.tasks[key] = value[1] if isinstance(value, tuple) else value
