"""Progress of runs at work, counted from their record files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mill.store.folder import RunFolder
from mill.store.session import SessionFile
from mill.view.overview import LiveProgress
from mill.view.run_info import RunInfo

LINE = '{"key": "a"}\n'


def test_responses_are_counted_while_a_process_works(tmp_path: Path) -> None:
    """Pages and the stream of updates count at the same time, in several threads."""
    record = tmp_path / "record" / "one.jsonl"
    record.parent.mkdir()
    progress, run = LiveProgress(), RunInfo("uid", "run", tmp_path, ())
    assert progress.of(run, 1000) is None
    with SessionFile(RunFolder(tmp_path), ["task"]) as session, ThreadPoolExecutor(8) as threads:
        assert progress.of(run, 1000) is None, "it waits for its turn"
        session.take_turn()
        for lines in (0, 400, 1000):
            record.write_text(LINE * lines)
            found = [one for one in threads.map(lambda _: progress.of(run, 1000), range(40)) if one is not None]
            assert {one["responses"] for one in found} == {lines}
            assert {one["requests"] for one in found} == {1000}
    assert progress.of(run, 1000) is None
