"""Results of other tools (lm-eval, inspect_ai) as runs of mill."""

from mill.view.other_logs.convert import convert_log
from mill.view.other_logs.find import OtherLog, find_logs, identify_log

__all__ = ["OtherLog", "convert_log", "find_logs", "identify_log"]
