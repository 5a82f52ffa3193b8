"""Compiles every kernel launch of some layers for sm_90, without a GPU, and prints a JSON list of them for each layer.

A program of its own because kernels are either interpreted or compiled in a process, never both. What is compiled is what the
backend launches: its launches are caught and their arguments turned into Triton signatures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.attention_cases import Case, set_scene, triton_backend
from vllm_lite.worker.attention import triton_kernels

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int32: "*i32"}
OPTIONS = {"num_warps", "num_stages", "enable_fp_fusion"}


class Caught:
    """Stands in for a kernel and compiles its launches."""

    def __init__(self, kernel: Any, launches: list[dict[str, Any]]) -> None:
        self._kernel, self._launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._compile

    def _compile(self, *args: Any, **keywords: Any) -> None:
        signature, constants, attributes = {}, {}, {}
        options = {name: value for name, value in keywords.items() if name in OPTIONS}
        for index, name in enumerate(self._kernel.arg_names):
            value = args[index] if index < len(args) else keywords[name]
            if index >= len(args):
                signature[name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                assert value.data_ptr() % 16 == 0, f"{name} is not aligned: compiled once more at run time"
                signature[name], attributes[(index,)] = TYPES[value.dtype], [["tt.divisibility", 16]]
            elif isinstance(value, float):
                signature[name] = "fp32"
            else:
                signature[name] = "i32"
                if value % 16 == 0 and name not in self._kernel.do_not_specialize:
                    attributes[(index,)] = [["tt.divisibility", 16]]
        source = ASTSource(fn=self._kernel, signature=signature, constexprs=constants, attrs=attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        self._launches.append(facts(self._kernel.__name__, compiled))


def facts(name: str, compiled: Any) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        sass, usage = (
            subprocess.run([CUOBJDUMP, option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("--dump-sass", "--dump-resource-usage")
        )
    return {
        "kernel": name,
        "wgmma": compiled.asm["ptx"].count("wgmma.mma_async"),
        "HGMMA": sass.count("HGMMA"),
        "HMMA": sass.count("HMMA"),
        "wide_copies": sum("LDGSTS" in line and ".128 " in line for line in sass.splitlines()),
        "spills": "STACK:0" not in usage,
        "shared_bytes": compiled.metadata.shared,
    }


def main() -> None:
    launches: list[dict[str, Any]] = []
    for name in ("store_kv", "attend", "combine"):
        setattr(triton_kernels, name, Caught(getattr(triton_kernels, name), launches))
    for layer in json.loads(sys.argv[1]):
        launches.clear()
        for batch in (((1, 5),), ((1, 9), (200, 0))):  # a decode alone, then one with a chunk
            scene = set_scene(Case("", batch, dtype=torch.bfloat16, **layer))
            backend = triton_backend(scene.case, torch.device("cpu"))
            backend.begin_step(scene.metadata)
            scene.attend(backend, torch.device("cpu"), scene.case.dtype)
        print(json.dumps(launches))


if __name__ == "__main__":
    main()
