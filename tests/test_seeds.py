"""The command lines of the documentation: each is parsed, and its models resolve, as documented."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from mill.checks.kinds import kind_of
from mill.cli.main import cli, run
from mill.models.spec.open import load_model_from_file, open_model, resolve_spec
from mill.models.spec.parse import Spec, make_spec, parse_spec
from mill.options.option import options_of
from tests.servers import llama_server

OLLAMA, SERVER = "http://127.0.0.1:11434", "http://my-server:8000/v1"
LLAMA, QUANTIZED = "meta-llama/Meta-Llama-3-8B-Instruct", "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit"
SPECS = {
    LLAMA: Spec("hf", {"path": LLAMA}),
    "litellm[model=gpt-4o]": Spec("litellm", {"model": "gpt-4o"}),
    "litellm[model=claude-3-5-sonnet-20241022]": Spec("litellm", {"model": "claude-3-5-sonnet-20241022"}),
    f"hf[path={LLAMA},dtype=bfloat16,batch_size=4]": Spec("hf", {"path": LLAMA, "dtype": "bfloat16", "batch_size": "4"}),
    f"vllm[path={LLAMA},dtype=bfloat16]": Spec("vllm", {"path": LLAMA, "dtype": "bfloat16"}),
    "clip[path=ViT-B-32,pretrained=laion2b_s34b_b79k]": Spec(
        "clip", {"path": "ViT-B-32", "pretrained": "laion2b_s34b_b79k"}
    ),
    "timm[path=resnet50.a1_in1k]": Spec("timm", {"path": "resnet50.a1_in1k"}),
    "mlx-community/Llama-3.1-8B-Instruct-4bit": Spec("mlx-lm", {"path": "mlx-community/Llama-3.1-8B-Instruct-4bit"}),
    "ollama:llama3.1:8b-instruct-q4_K_M": Spec(
        "openai-compat", {"model": "llama3.1:8b-instruct-q4_K_M", "base_url": OLLAMA}
    ),
    "llama3.1:8b": Spec("openai-compat", {"model": "llama3.1:8b", "base_url": OLLAMA}),
    f"{SERVER}[model=my-model]": Spec("openai-compat", {"base_url": SERVER, "model": "my-model"}),
    "model.gguf": Spec("llama-cpp", {"model": "model.gguf"}),
    "gguf:my-model": Spec("llama-cpp", {"model": "my-model"}),
    f"vllm-mlx:{QUANTIZED}": Spec("vllm-mlx", {"model": QUANTIZED}),
}


@pytest.mark.parametrize(("text", "spec"), SPECS.items(), ids=SPECS)
def test_a_model_resolves_as_documented(text: str, spec: Spec) -> None:
    assert parse_spec(text) == spec


def test_a_config_file_is_read_by_load_model_from_file() -> None:
    path = "mill/models/configs/qwen/qwen2_5_vl_7b.py"
    config = load_model_from_file(path)
    assert (config["type"], config["path"]) == ("hf", "Qwen/Qwen2.5-VL-7B-Instruct")
    assert config["modalities"] == ["text", "image", "video"]
    resolved = resolve_spec(parse_spec(f"{path}[batch_size=2]"))
    assert resolved.arguments["batch_size"] == "2"
    assert open_model(resolved).batch_size == 2


@pytest.mark.parametrize("family", ["qwen", "internvl", "llama", "smollm2"])
def test_the_config_families_exist_and_open(family: str) -> None:
    from pathlib import Path

    import mill

    files = sorted((Path(mill.__file__).parent / "models/configs" / family).glob("*.py"))
    assert files
    for file in files:
        assert open_model(str(file)).model_name


def test_default_addresses_and_timeouts_are_the_documented_ones() -> None:
    for text, url in {"gguf:m": "http://127.0.0.1:8080", "vllm-mlx:m": "http://127.0.0.1:8000", "ollama:m": OLLAMA}.items():
        model: Any = open_model(text)
        assert (model.base_url, model.client.timeout) == (url, 120.0)


@pytest.mark.parametrize(
    ("model", "backend", "url", "spec"),
    [
        ("my-model", "llama-cpp", "http://127.0.0.1:8080", "llama-cpp[model=my-model,base_url=http://127.0.0.1:8080]"),
        (QUANTIZED, "mlx-lm", "", f"mlx-lm[path={QUANTIZED}]"),
        (QUANTIZED, "vllm-mlx", "http://127.0.0.1:8000", f"vllm-mlx[model={QUANTIZED},base_url=http://127.0.0.1:8000]"),
        ("my-model", "openai-compat", SERVER, f"openai-compat[model=my-model,base_url={SERVER}]"),
    ],
)
def test_model_backend_and_address_give_a_spec(model: str, backend: str, url: str, spec: str) -> None:
    assert make_spec(model, backend=backend, base_url=url) == parse_spec(spec)


# The check commands as printed, with the parsed values of their options.
CHECKS = {
    "compare mlx-community/Llama-3.1-8B-Instruct-bf16 mlx-community/Llama-3.1-8B-Instruct-4bit": {
        "a": "mlx-community/Llama-3.1-8B-Instruct-bf16",
        "b": "mlx-community/Llama-3.1-8B-Instruct-4bit",
    },
    "compare ollama:llama3.1:8b-instruct-q4_K_M ollama:llama3.1:8b-instruct-q8_0": {"prompts": None, "tasks": None},
    "determinism --model my-model --backend llama-cpp --base-url http://127.0.0.1:8080 --prompts determinism --runs 20": {
        "model": "my-model",
        "backend": "llama-cpp",
        "base_url": "http://127.0.0.1:8080",
        "prompts": ["determinism"],
        "runs": 20,
    },
    'diff --model mlx-community/Meta-Llama-3.1-8B-Instruct-4bit --backends "mlx-lm,vllm-mlx"'
    ' --base-urls ",http://127.0.0.1:8000" --prompts reasoning': {
        "backends": "mlx-lm,vllm-mlx",
        "base_urls": ",http://127.0.0.1:8000",
        "chat": True,
    },
    "diff --model m --backends a,b --no-chat": {"chat": False},
    "stress --model my-model --backend openai-compat --base-url http://my-server:8000/v1 --prompts reasoning"
    " --concurrency 1,2,4,8": {"concurrency": "1,2,4,8", "base_url": "http://my-server:8000/v1"},
    'sweep --models "bf16=org/a,4bit=org/b" --backend mlx-lm --prompts reasoning': {"backend": "mlx-lm", "baseline": None},
    "report results": {"folder": "results", "form": "html"},
}


@pytest.mark.parametrize(("line", "expected"), CHECKS.items())
def test_the_check_commands_are_parsed_as_documented(line: str, expected: dict[str, object]) -> None:
    name, *arguments = shlex.split(line)
    with cli.make_context("infer-check", [name]) as above:
        command = cli.get_command(above, name)
        assert command is not None
        with command.make_context(name, arguments, parent=above) as context:
            assert {key: context.params[key] for key in expected} == expected


def test_default_levels_and_runs_are_the_documented_ones() -> None:
    assert options_of(kind_of("stress").Options)["concurrency"].default == "1,2,4,8,16"
    assert options_of(kind_of("determinism").Options)["runs"].default == 100


def test_determinism_on_a_llama_server_runs_as_printed(demo_weights: Path, tmp_path: Path) -> None:
    with llama_server(demo_weights, alias="my-model") as url:
        line = f"determinism --model my-model --backend llama-cpp --base-url {url} --prompts determinism --runs 3"
        assert run([*line.split(), "--limit", "2", "--max-tokens", "6", "--quiet", "--output", str(tmp_path)]) == 0
