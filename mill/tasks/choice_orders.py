"""The orders in which the choices of a question are listed: a draw that depends on the seed and the sample alone."""

from __future__ import annotations

import math
import random

from mill.api.task import RenderSettings

Order = tuple[int, ...]
"""The indices of the choices, in the order in which they are listed."""


def choice_orders(count: int, sample_id: str, settings: RenderSettings) -> list[Order]:
    """As many different orders of `count` choices as the settings say, or all that there are.

    The last is the order of the data, or the shuffled one. Before it come its rotations, so that as many orders as there are
    choices list each choice once at every position; beyond those, other orders.
    """
    draw = random.Random(f"{settings.seed or 0}/{sample_id}")
    given = list(range(count))
    if settings.shuffle_choices:
        draw.shuffle(given)
    wanted = min(settings.permutations, math.factorial(count))
    shifts = draw.sample(range(1, count), min(wanted, count) - 1)
    orders = dict.fromkeys([tuple(given), *(tuple(given[shift:] + given[:shift]) for shift in shifts)])
    while len(orders) < wanted:
        orders.setdefault(tuple(draw.sample(given, count)))
    return list(orders)[::-1]
