"""A small made-up run, always the same, for demos and tests of whatever reads spools. Nothing in it was measured.

Process: demos and tests. Knows: `canned.jsonl`, whose lines are [ending, who wrote, records] in the order of time. Does not
know: the engine. Three requests in nine steps. Ann's answer is an ordinary one. Bob's ends by a stop string, so the engine
makes one token too many for him: a late letter. Cleo reads slowly, so letters are stapled; she is also preempted once and
computed again. In the variant `engine_dies` the engine core is killed after step 4, in the middle of writing a frame.
Mirrors: nothing in vLLM.
"""

from collections import defaultdict
from importlib.resources import files
from pathlib import Path

import msgspec

from vllm_lite.tracing.clock import Anchor
from vllm_lite.tracing.control_page import ControlPage
from vllm_lite.tracing.records import Accept, AnyRecord, Sort, Takes
from vllm_lite.tracing.spool import SCHEMA, SpoolHeader, frame, segment_name

ANCHOR = Anchor(wall_ns=1_767_225_600_000_000_000, mono_ns=0, boot_id="canned-boot")  # 2026-01-01
PIDS = {"frontend": 4001, "engine-core": 4002, "worker": 4002}
TORN = b"\x40\x00\x00\x00\x12\x34\x56\x78half a frame"


def write_canned_run(run_dir: Path, level: int = 3, engine_dies: bool = False) -> Path:
    """Write the control page, the spools and client.jsonl of the story into `run_dir` (made if absent), and return it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    ControlPage.create(run_dir, level, pid=PIDS["frontend"], anchor=ANCHOR).close()
    encode, spools, callers = msgspec.msgpack.encode, defaultdict[str, list[bytes]](list), b""
    for line in files("vllm_lite.tracing").joinpath("canned.jsonl").read_bytes().splitlines():
        ending, writer, body = msgspec.json.decode(line, type=tuple[str, str, msgspec.Raw])
        if ending not in ("", "engine dies" if engine_dies else "ends well"):
            continue
        if writer == "client":
            callers += bytes(body) + b"\n"
            continue
        records = [fitted for told in msgspec.json.decode(body, type=list[AnyRecord]) if (fitted := _at_level(told, level))]
        spools[writer] += [frame(encode(records))] if records else []
    for writer, frames in spools.items():
        role, thread = writer.split()
        header = SpoolHeader(
            SCHEMA, role, PIDS[role], thread, "canned-host", ANCHOR.boot_id, ANCHOR.wall_ns, ANCHOR.mono_ns, PIDS["frontend"]
        )
        torn = TORN if engine_dies and thread == "main" else b""
        path = run_dir / segment_name(role, PIDS[role], thread, 0)
        path.write_bytes(b"".join((frame(encode(header)), *frames, torn)))
    (run_dir / "client.jsonl").write_bytes(callers)
    return run_dir


def _at_level(record: AnyRecord, level: int) -> AnyRecord | None:
    """The record as it would have been written at `level`; None for one that would not."""
    if isinstance(record, Accept):
        return msgspec.structs.replace(record, level=level)
    if level < 2 and isinstance(record, Takes):
        return None
    return msgspec.structs.replace(record, reqs=[], tokens=[], fates="") if level < 2 and isinstance(record, Sort) else record
