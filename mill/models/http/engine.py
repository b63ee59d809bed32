"""Which build and which start of it answers at an address, from all that a server says about itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mill.api.engine import Engine
from mill.api.errors import DataError
from mill.models.http.client import Client
from mill.support.validate import parse_json

VERSION, OLLAMA_VERSION, OLLAMA_MODELS = "/version", "/api/version", "/api/tags"
SGLANG, LLAMA, MODELS, METRICS = "/get_server_info", "/props", "/v1/models", "/metrics"
ROUTES = (VERSION, OLLAMA_VERSION, OLLAMA_MODELS, SGLANG, LLAMA, MODELS, METRICS)
_STARTS = ("media_marker", "random_seed", "nccl_port")  # drawn at each start
_CHANGING = {*_STARTS, "created", "permission", "is_sleeping", "modified_at", "internal_states", "last_gen_throughput"}
_NAMED = {"id", "object", "owned_by", "root", "parent", "max_model_len", "aliases"}  # part of the identity, or a name
_STARTED = re.compile(r"^process_start_time_seconds\S* (\S+)", re.MULTILINE)
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_CACHE_SETTINGS = ("block_size", "cache_dtype", "enable_prefix_caching", "kv_sharing_fast_prefill", "sliding_window")
_ENDS = 1 << 16  # bytes of the head and of the tail of a file


def read_engine(client: Client, model: str) -> Engine:
    """Unknown where the server says nothing that another build, or another model under the same name, would change."""
    said = client.read_all(ROUTES)
    bodies = {path: _object(raw) for path, raw in said.items()}
    entries = bodies.get(MODELS, {}).get("data") or []
    entry = next((one for one in entries if isinstance(one, dict) and (one.get("id") == model or len(entries) == 1)), {})
    props, settings = bodies.get(LLAMA, {}), bodies.get(SGLANG, {})
    metrics = said.get(METRICS, b"").decode("utf-8", "replace")
    name = str(entry.get("owned_by") or "server")
    build = {
        name: bodies.get(VERSION, {}).get("version") or settings.get("version") or props.get("build_info"),
        "ollama": bodies.get(OLLAMA_VERSION, {}).get("version"),
        "digest": _ollama_digest(bodies.get(OLLAMA_MODELS, {}), model),
        "model": {key: value for key, value in _steady(entry).items() if key not in _NAMED},
        "props": _steady(props),
        "settings": _steady(settings),
        "cache": {key: value for key, value in _labels(metrics).items() if key in _CACHE_SETTINGS},
        "files": _files(client, props.get("model_path") or settings.get("model_path") or entry.get("root")),
    }
    started = _STARTED.search(metrics)
    instance = {
        **{key: value for key, value in {**props, **settings}.items() if key in _STARTS},
        **({"started": started[1]} if started else {}),
    }
    return Engine({key: value for key, value in build.items() if value}, instance)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = parse_json(raw, "the server's answer")
    except DataError:
        return {}
    return body if isinstance(body, dict) else {}


def _steady(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key not in _CHANGING}


def _labels(metrics: str) -> dict[str, str]:
    found = _CACHE.search(metrics)
    return dict(re.findall(r'(\w+)="([^"]*)"', found[1])) if found else {}


def _ollama_digest(tags: Mapping[str, Any], model: str) -> str:
    models = [one for one in tags.get("models") or [] if isinstance(one, dict)]
    return next((str(one.get("digest") or "") for one in models if model in (one.get("name"), one.get("model"))), "")


def _files(client: Client, path: Any) -> dict[str, list[Any]]:
    """Of weights that a server on this machine says it has: size, time and the digest of head and tail of each file."""
    if not isinstance(path, str) or urlsplit(client.base_url).hostname not in ("127.0.0.1", "localhost", "::1"):
        return {}
    try:
        named = Path(path)
        files = [named] if named.is_file() else [one for one in named.iterdir() if one.is_file()] if named.is_dir() else []
        return {file.name: _stamp(file) for file in sorted(files)}
    except (OSError, ValueError):
        return {}


def _stamp(file: Path) -> list[Any]:
    stat = file.stat()
    with file.open("rb") as handle:
        digest = hashlib.sha256(handle.read(_ENDS))
        handle.seek(max(0, stat.st_size - _ENDS))
        digest.update(handle.read(_ENDS))
    return [stat.st_size, stat.st_mtime_ns, digest.hexdigest()[:16]]
