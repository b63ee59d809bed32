"""Real MLX engines on this machine's CPU: the conformance suite, and prefix reuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.engines.prepared import ENVIRONMENT, MODEL, conform, engine
from tests.servers import free_port, serving


def test_mlx_lm_conforms(small: Path) -> None:
    out = conform(engine("mlx") / "python", f"mlx-lm[path={small},max_context_length=256]")
    assert "19 passed, 0 failed, 1 skipped" in out


def test_vllm_mlx_conforms_in_the_kinds_it_serves(small: Path) -> None:
    binary, port = engine("vllm-mlx") / "vllm-mlx", free_port()
    with serving(ENVIRONMENT, str(binary), "serve", str(small), "--host", "127.0.0.1", "--port", str(port)):
        out = conform(sys.executable, f"vllm-mlx[base_url=http://127.0.0.1:{port}]", "--wait", "60")
    assert "11 passed, 0 failed, 9 skipped" in out


SHARED_PREFIXES = """
import sys
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.models.mlx_lm import MlxModel
start = "Here is a list of capitals. France: Paris. Spain: Madrid."
tails = [" Italy:", " Germany:", " Italy: Rome. Peru:", ""]
requests = [Request(GENERATE, start + tail, options=generation_options(max_gen_toks=6)) for tail in tails]
model = MlxModel(sys.argv[1], max_context_length=256)
together = [answer.text for answer in model.generate_until(requests)]
alone = []
for request in requests:
    model._cached = None
    alone += [answer.text for answer in model.generate_until([request])]
assert together == alone, (together, alone)
(scored,) = model.loglikelihood([Request(LOGLIKELIHOOD, start, " Italy: Rome.", options={"logprobs": "all"})])
whole = scored.distribution
assert whole.shape[0] == len(scored.tokens) and abs(sum(token.logprob for token in scored.tokens) - scored.score) < 1e-3
assert all(abs(float(row[token.id]) - token.logprob) < 1e-4 for row, token in zip(whole, scored.tokens))
(paris,) = model.loglikelihood([Request(LOGLIKELIHOOD, "The capital of France is", " Paris")])
assert abs(paris.score + 0.258) < 2e-3, paris.score  # as hf and vLLM compute it from these weights
print("equal")
"""


def test_mlx_lm_reuses_prefixes_and_returns_distributions() -> None:
    command = [str(engine("mlx") / "python"), "-c", SHARED_PREFIXES, str(MODEL)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "equal" in done.stdout, done.stderr[-2000:]
