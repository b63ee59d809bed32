"""From sample values to an estimate with its uncertainty. Pure arithmetic: imports only `mill.api` and `mill.support`."""

from mill.metrics.aggregate import bits_per_unit, kappa, mean, perplexity, position_spread, share
from mill.metrics.estimate import Estimate, pool

__all__ = ["Estimate", "bits_per_unit", "kappa", "mean", "perplexity", "pool", "position_spread", "share"]
