"""Runs in the environment of the readers: reads logs with inspect_ai. argv: a folder of logs; prints JSON."""

import json
import sys
from typing import Any

from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample_summaries


def log(name: str) -> dict[str, Any]:
    found = read_eval_log(name)
    return {
        "status": found.status,
        "task": found.eval.task,
        "model": found.eval.model,
        "epochs": found.eval.config.epochs,
        "limit": found.eval.config.limit,
        "metadata": found.eval.metadata,
        "args": found.eval.model_args,
        "results": found.results.model_dump() if found.results else None,
        "usage": {name: usage.model_dump() for name, usage in found.stats.model_usage.items()},
        "summaries": len(read_eval_log_sample_summaries(name)) if found.samples else 0,
        "samples": [
            {**sample.model_dump(exclude={"messages", "output"}), "completion": sample.output.completion,
             "stop_reason": sample.output.stop_reason if sample.output.choices else None,
             "messages": [message.model_dump(exclude_none=True) for message in sample.messages]}
            for sample in found.samples or ()
        ],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps([log(info.name) for info in list_eval_logs(sys.argv[1])]))
