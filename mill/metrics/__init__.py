"""From sample values to an estimate with its uncertainty. Pure arithmetic: imports only `mill.api`."""

from mill.metrics.aggregate import bits_per_unit, mean, perplexity
from mill.metrics.agreement import kappa
from mill.metrics.estimate import Estimate, pool
from mill.metrics.positions import position_spread, share

__all__ = ["Estimate", "bits_per_unit", "kappa", "mean", "perplexity", "pool", "position_spread", "share"]
