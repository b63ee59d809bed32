"""Which way a metric gets better, known by its name."""

from __future__ import annotations

import re

HIGHER, LOWER, UNKNOWN = 1, -1, 0

_HIGHER = {
    "acc", "acc_norm", "acc5", "acc_mutual_info", "acc_bytes", "accuracy", "relaxed_accuracy", "balanced_accuracy",
    "exact_match", "exact_match_flexible", "exact_match_first", "em", "exact", "contains", "quasi_exact_match",
    "pass", "maj", "avg", "best", "recall", "precision", "f1", "f1_macro", "mcc", "kappa", "anls", "map", "mrr", "ndcg",
    "bleu", "sacrebleu", "chrf", "rouge", "rouge1", "rouge2", "rougel", "rougelsum", "meteor", "cider", "bertscore",
    "judge", "consistency", "mc1", "mc2", "prompt_level_strict_acc", "prompt_level_loose_acc", "inst_level_strict_acc",
    "inst_level_loose_acc",
}  # fmt: skip
_LOWER = {
    "perplexity", "word_perplexity", "byte_perplexity", "token_perplexity", "ppl", "bits_per_byte", "bits_per_unit",
    "bits_per_word", "bits_per_token", "loss", "nll", "ter", "wer", "cer", "brier_score", "ece", "mae", "mse", "rmse",
    "unreadable", "position_spread", "failed_calls",
}  # fmt: skip
_FILTER = re.compile(r",.*")  # a filter of lm-eval, or a metric over repeats: exact_match,pass@8
_COUNT = re.compile(r"@\d+$")


def direction(metric: str) -> int:
    """HIGHER where more is better, LOWER where less is, UNKNOWN for every other name, such as one of a user's task."""
    name = _COUNT.sub("", _FILTER.sub("", metric)).rpartition("/")[2].lower()
    return HIGHER if name in _HIGHER else LOWER if name in _LOWER else UNKNOWN
