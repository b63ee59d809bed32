"""Runs in the environment of MLX: prefixes are reused without a difference. argv: a model; prints the score of PAIR."""

import sys

from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.models.mlx_lm import MlxModel

PAIR = ("The capital of France is", " Paris")

if __name__ == "__main__":
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
    whole, tokens = scored.distribution, scored.tokens
    assert whole is not None and tokens is not None and scored.score is not None
    assert whole.shape[0] == len(tokens) and abs(sum(token.logprob for token in tokens) - scored.score) < 1e-3
    assert all(abs(float(row[token.id]) - token.logprob) < 1e-4 for row, token in zip(whole, tokens, strict=True))
    (pair,) = model.loglikelihood([Request(LOGLIKELIHOOD, *PAIR)])
    print(f"\n{pair.score}")
