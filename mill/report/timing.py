"""Where the time of a run went: seconds by phase, tokens that sharing saved, and how much of its device it used."""

from __future__ import annotations

from collections.abc import Sequence

from mill.api.errors import RunError
from mill.report.tables import print_table
from mill.store.schema import SessionEntry
from mill.support.clocks import DECODING, FORWARD, PHASES
from mill.support.terminal import echo

PEAKS = {  # dense TFLOP/s in bfloat16, by a part of the device's name
    "H200": 989, "H100 PCIe": 756, "H100": 989, "H800": 989, "GH200": 989, "B200": 2250, "A100": 312, "A800": 312,
    "L40S": 362, "L40": 181, "L4": 121, "A10": 125, "A30": 165, "RTX 4090": 165, "RTX 3090": 71, "RTX A6000": 155,
}  # fmt: skip


def print_timing(sessions: Sequence[SessionEntry]) -> None:
    """The last session that computed something, or else the last one: a row for each phase, in the order of the work."""
    timed = [session for session in sessions if session.timing]
    if not timed:
        raise RunError("no session of this run has recorded its phases: it did not end, or mill was older")
    session = next((one for one in reversed(timed) if one.computed), timed[-1])
    total = sum(session.timing.values())
    names = [*(name for name in PHASES if name in session.timing), *(name for name in session.timing if name not in PHASES)]
    rows = [[name, f"{session.timing[name]:.2f}", f"{session.timing[name] / total:.1%}" if total else ""] for name in names]
    title = f"session of {session.started}: {total:.1f} s"
    print_table(title, ["phase", "seconds", "share"], rows, numbers=("seconds", "share"))
    for line in timing_lines(session, sessions):
        echo(line)


def timing_lines(session: SessionEntry, sessions: Sequence[SessionEntry]) -> list[str]:
    """What the phases do not say."""
    lines = []
    if session.computed_tokens and (requested := _requested_tokens(session)) >= session.computed_tokens:
        saved = f"{1 - session.computed_tokens / requested:.0%} saved by sharing prefixes"
        what = (
            "tokens"
            if DECODING not in session.timing
            else "tokens of prompts and choices"
            if session.scored
            else "tokens of prompts"
        )
        lines.append(f"{session.computed_tokens:,} {what} computed of {requested:,} in all requests: {saved}")
    if generated := session.output_tokens - session.scored_tokens if session.computed > session.scored >= 0 else 0:
        lines.append(f"{generated:,} tokens generated")
    lines += [f"{stage}: {path}" for stage, path in session.paths.items()]
    rate = _rate(session)
    if rate is not None and session.device is not None:
        device = f"{session.device.name} in {session.device.dtype}"
        speed = f"{rate:.3g} TFLOP/s" if rate >= 1 else f"{1000 * rate:.3g} GFLOP/s"
        lines.append(f"forward passes: {speed} on {device}{_share(session)}")
    if len(sessions) > 1:
        lines.append(f"session {sessions.index(session) + 1} of {len(sessions)} of this run; --format json has all")
    return lines


def _requested_tokens(session: SessionEntry) -> int:
    """Those of all requests but the last of each, which is scored, or the first step of decoding; 0 where unknown."""
    if session.scored >= 0:
        return session.prompt_tokens + session.scored_tokens - session.computed
    generated = (
        DECODING in session.timing
    )  # an older version counted neither prompts of these nor which tokens were generated
    return 0 if generated else session.prompt_tokens + session.output_tokens - session.computed


def _rate(session: SessionEntry) -> float | None:
    """TFLOP/s of the forward passes over prompts; None where tokens were also generated in them, or nothing is known."""
    seconds = session.timing.get(FORWARD, 0.0)
    if session.device is None or not session.computed_tokens or not seconds or DECODING in session.timing:
        return None
    return session.computed_tokens * session.device.operations_per_token / seconds / 1e12


def _share(session: SessionEntry) -> str:
    device, rate = session.device, _rate(session)
    if device is None or rate is None or device.dtype not in ("bfloat16", "float16"):
        return ""
    peak = next((peak for name, peak in PEAKS.items() if name in device.name), None)
    return f", {rate / peak:.0%} of its peak of {peak:,} TFLOP/s" if peak else ""
