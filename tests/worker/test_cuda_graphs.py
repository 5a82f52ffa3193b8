"""Graphs without a GPU: a stand-in for capture that re-executes the captured call with what a graph would have frozen."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.driver import Driver, make_config
from tests.worker.reference import generate, load_reference
from vllm_lite.config import VllmConfig
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.worker.attention.metadata import AttentionMetadata
from vllm_lite.worker.cuda_graphs import DecodeGraphs, Run, graph_sizes, pad_decodes
from vllm_lite.worker.input_batch import StepBatch

ANSWER = 5


class FrozenCapture:
    """Re-executes a captured call as a graph would: the tensors' addresses and the attention plan are those of the capture, the
    result goes where the first one lay. What the host prepared since then shows only through memory."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.replays: list[int] = []

    def __call__(self, run: Run) -> tuple[Callable[[], object], torch.Tensor]:
        result, plan = run(), self._backend._plan.clone()

        def replay() -> None:
            self._backend._plan.copy_(plan)
            result.copy_(run())
            self.replays.append(len(result))

        return replay, result


@pytest.fixture(scope="module")
def shallow(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model cut down to two layers: an interpreted layer takes its time."""
    folder = tmp_path_factory.mktemp("models") / "shallow"
    shutil.copytree(tiny_model_path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    return folder


def triton_config(folder: Path, **options: Any) -> VllmConfig:
    pytest.importorskip("triton")
    options = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, "attention_backend": "triton"} | options
    return make_config(folder, **options)


def run_three_requests(driver: Driver, folder: Path) -> None:
    """Staggered, so that decodes alone, chunks alone and both together occur; the tokens must be those of generate."""
    choose = random.Random(1)
    prompts = {str(length): [choose.randrange(256) for _ in range(length)] for length in (3, 9, 21)}
    for name, prompt in prompts.items():
        driver.add(name, prompt)
    driver.step({"3": 3})
    driver.step({"3": 1})
    model = load_reference(folder, "float32")
    assert driver.run(ANSWER, budget=20) == {name: generate(model, prompt, ANSWER) for name, prompt in prompts.items()}


def test_replayed_and_interpreted_steps_equal_generate(shallow: Path) -> None:
    driver = Driver(triton_config(shallow), num_blocks=40)
    runner = driver.worker._runner
    capture = FrozenCapture(runner.backend)
    runner.capture_graphs(capture)
    run_three_requests(driver, shallow)
    assert capture.replays == [1, 4, 2, 2, 1]  # one alone; three, padded; then one after the other ends


def test_a_step_that_is_no_plain_decode_runs_eagerly(shallow: Path) -> None:
    driver = Driver(triton_config(shallow), num_blocks=40)
    capture = FrozenCapture(driver.worker._runner.backend)
    driver.worker._runner.capture_graphs(capture)
    driver.add("first", [1, 2, 3])
    driver.step({"first": 1})  # one token, but not the prompt's last
    assert capture.replays == []


def test_compiled_once_for_all_steps(shallow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compile_model(function, backend=count, **options))
    driver = Driver(triton_config(shallow, compile=True), num_blocks=40)
    runner = driver.worker._runner
    capture = FrozenCapture(runner.backend)
    runner.capture_graphs(capture)
    run_three_requests(driver, shallow)
    assert len(compiled) == 1  # no second size, no break
    targets = [node.target for node in compiled[0].graph.nodes]
    assert targets.count(torch.ops.vllm_lite.paged_attention) == runner._model.config.num_hidden_layers
    assert capture.replays == [2, 4, 2, 2, 2]


def test_a_model_that_cannot_be_compiled_is_refused(shallow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: torch.Tensor) -> None:
        raise torch._dynamo.exc.Unsupported("Data-dependent branching\n  and a long explanation")

    monkeypatch.setattr(torch, "compile", lambda function, **options: fail)
    with pytest.raises(UnsupportedModelError, match=r"compiled \(Data-dependent branching\): leave --compile away"):
        Driver(triton_config(shallow, compile=True), num_blocks=40)


def test_a_model_that_cannot_be_captured_is_refused() -> None:
    def fail(run: Run) -> tuple[Callable[[], object], torch.Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(UnsupportedModelError, match=r"step of 2 requests .* \(operation not .*\): give --enforce-eager"):
        DecodeGraphs([1, 2]).capture(4, lambda step, rows: (), torch.zeros, fail)


@pytest.mark.parametrize(
    ("max_num_seqs", "least", "sizes"),
    [
        (1, 1, [1]),
        (3, 1, [1, 2, 3]),
        (8, 1, [1, 2, 4, 8]),
        (100, 1, [1, 2, 4, 8, 16, 32, 64, 100]),
        (256, 2, [2, 4, 8, 16, 32, 64, 128, 256]),
        (1, 2, [2]),
    ],
)
def test_sizes(max_num_seqs: int, least: int, sizes: list[int]) -> None:
    assert graph_sizes(max_num_seqs, least) == sizes


def test_the_smallest_size_that_fits() -> None:
    graphs = DecodeGraphs([1, 2, 4])
    assert graphs.fitting(1) is None  # nothing captured
    graphs.capture(4, lambda step, rows: (torch.tensor(len(rows)),), lambda size: size * 10, lambda run: (run, run()))
    assert [graphs.fitting(count) for count in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, None]
    assert graphs.replay(4).item() == 40


def test_padding_sequences_read_the_null_block_and_write_nowhere() -> None:
    attention = AttentionMetadata(4, 2, np.arange(3), np.array([9, 2]), np.array([[5, 6, 7], [8, 0, 0]]), np.array([28, 33]))
    rows = np.array([1, 0])
    step = StepBatch(["a", "b"], rows, np.array([8, 1]), np.array([11, 12]), np.array([8, 1]), np.ones(2, np.bool_), attention)
    padded = pad_decodes(step, 4)
    assert padded.token_ids.tolist() == [11, 12, 0, 0]
    assert padded.positions.tolist() == [8, 1, 0, 0]
    assert padded.attention.num_decodes == padded.attention.num_reqs == 4
    assert padded.attention.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert padded.attention.seq_lens.tolist() == [9, 2, 1, 1]
    assert padded.attention.block_table.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert padded.attention.slot_mapping.tolist() == [28, 33, -1, -1]
    assert padded.req_ids == ["a", "b"]
    assert padded.rows is rows
