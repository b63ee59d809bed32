"""BFCL, the Berkeley function-calling leaderboard: its single-turn and multi-turn categories, and its means over them."""

from mill.api.registry import tasks
from mill.api.task import Benchmark
from mill.tasks.bfcl.multi_turn import DIALOGS, MultiTurnTask
from mill.tasks.bfcl.questions import CATEGORIES, FunctionCallTask

for _category in CATEGORIES:
    tasks.add(f"bfcl_{_category}", FunctionCallTask)
for _category in DIALOGS:
    tasks.add(f"bfcl_{_category}", MultiTurnTask)


def _add_mean(name: str, *members: str, weighted: bool = False) -> None:
    tasks.add(name, Benchmark(name, tuple(f"bfcl_{member}" for member in members), weighted))


# As the leaderboard averages them: live categories by samples, the others with equal weights. live_relevance is in no mean.
_add_mean("bfcl_simple", "simple_python", "simple_java", "simple_javascript")
_add_mean("bfcl_non_live", "simple", "multiple", "parallel", "parallel_multiple")
_add_mean("bfcl_live", "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", weighted=True)
_add_mean("bfcl_irrelevance_detection", "irrelevance", "live_irrelevance")
_add_mean("bfcl_single_turn", "non_live", "live", "irrelevance_detection")
_add_mean("bfcl_multi_turn", *DIALOGS)
# Its overall score gives the three single-turn means 10 % each, multi-turn 30 % and agentic, which mill lacks, 40 %.
_add_mean("bfcl", "single_turn", "multi_turn")
