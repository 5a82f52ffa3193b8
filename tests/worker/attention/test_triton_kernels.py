from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.architecture.source import ROOT

pytest.importorskip("triton")

SHARED_BYTES = 227 << 10  # what one program may have on sm_90
LAYERS: list[dict[str, Any]] = [
    {"heads": [16, 8], "widths": [128, 128]},
    {"heads": [9, 3], "widths": [64, 64]},
    {"heads": [8, 4], "widths": [256, 256], "softcap": 50.0, "window": 4096},
    {"heads": [64, 8], "widths": [64, 64], "sinks": True, "window": 128},
]


@pytest.fixture(scope="module")
def launches() -> list[list[dict[str, Any]]]:
    """What each layer's launches became: a decode alone, then a decode and a chunk."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.worker.attention.compile_for_sm90", json.dumps(LAYERS)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("layer", range(len(LAYERS)), ids=lambda layer: str(LAYERS[layer]))
def test_every_launch_compiles_for_sm_90(launches: list[list[dict[str, Any]]], layer: int) -> None:
    assert [launch["kernel"] for launch in launches[layer]] == ["store_kv", "attend", "combine"] * 2
    assert not any(launch["spills"] for launch in launches[layer])
    assert all(launch["shared_bytes"] <= SHARED_BYTES for launch in launches[layer])
    decode, chunk = (launch for launch in launches[layer] if launch["kernel"] == "attend")
    assert decode["HMMA"] > 0  # 16 rows: too few for a warp group
    assert chunk["wgmma"] > 0
    assert chunk["HGMMA"] == chunk["wgmma"]
    assert min(decode["wide_copies"], chunk["wide_copies"]) >= 8  # tiles are copied ahead, 16 bytes by each thread
