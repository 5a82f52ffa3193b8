"""What a run recorded, read back."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from vllm_lite.tracing.reader import SegmentReader
from vllm_lite.tracing.records import Record

R = TypeVar("R", bound=Record)


def read(run_dir: Path, thread: str, kind: type[R]) -> list[R]:
    """The records of one kind that one thread wrote; a torn or damaged spool fails."""
    found: list[R] = []
    for path in sorted(run_dir.glob(f"*-{thread}.vlt")):
        reader = SegmentReader(path)
        while True:
            records, size = reader.read()
            found += [record for record in records if isinstance(record, kind)]
            if size == 0:
                break
        assert not reader.torn
    return found
