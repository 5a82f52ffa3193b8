"""LLMEngine step by step, in process and beside its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.core_client.conftest import children
from tests.frontend.helpers import CUMULATIVE, DELTA, FINAL_ONLY, toy_args, toy_config
from vllm_lite import SamplingParams
from vllm_lite.exceptions import EngineDeadError, EngineStartError, VLLMValidationError
from vllm_lite.frontend.llm_engine import LLMEngine
from vllm_lite.outputs import RequestOutput
from vllm_lite.tracing.journey.load import load_run

Maker = Callable[..., LLMEngine]


@pytest.fixture
def make(tiny_model_path: Path) -> Iterator[Maker]:
    made: list[LLMEngine] = []

    def build(processes: bool = False, **options: Any) -> LLMEngine:
        args = toy_args(tiny_model_path, **options)
        made.append(LLMEngine.from_engine_args(args, enable_multiprocessing=processes))
        return made[-1]

    yield build
    for engine in made:
        assert not any((engine.output_processor.request_states, engine.output_processor.parent_requests, engine._mailboxes))
        engine.shutdown()
    assert children() == []


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 6, "ignore_eos": True, "output_kind": FINAL_ONLY, **values})


def run(engine: LLMEngine) -> list[RequestOutput]:
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return [output for output in outputs if isinstance(output, RequestOutput)]


@pytest.mark.parametrize("processes", [False, True])
def test_kinds_of_output(make: Maker, processes: bool) -> None:
    engine = make(processes)
    for kind in (FINAL_ONLY, CUMULATIVE, DELTA):
        engine.add_request(kind.name, [1, 2, 3], params(output_kind=kind))
    outputs = run(engine)
    (final,) = [output for output in outputs if output.request_id == "FINAL_ONLY"]
    cumulative = [output for output in outputs if output.request_id == "CUMULATIVE"]
    delta = [output for output in outputs if output.request_id == "DELTA"]
    whole = final.outputs[0].token_ids
    assert len(whole) == 6
    assert cumulative[-1].outputs[0].token_ids == whole
    assert [token for output in delta for token in output.outputs[0].token_ids] == whole
    assert [output.finished for output in delta] == [False] * (len(delta) - 1) + [True]
    assert engine.step() == []


def test_several_answers_and_a_stop_string(make: Maker) -> None:
    engine = make()
    engine.add_request("n", [1, 2, 3], params(n=3, seed=1, temperature=1.0))
    (output,) = run(engine)
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    text = output.outputs[0].text
    engine.add_request("stopped", [1, 2, 3], params(seed=1, temperature=1.0, stop=text[2:4]))
    (output,) = run(engine)
    assert output.outputs[0].text == text[:2]
    assert output.outputs[0].stop_reason == text[2:4]
    assert engine.engine_core.call_utility("reset_prefix_cache") is True


def test_a_refused_request_leaves_nothing(make: Maker) -> None:
    engine = make()
    with pytest.raises(VLLMValidationError, match="prompt must be"):
        engine.add_request("a", [], params())
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("name", ["resumable", "num_tokens_before", "client_index"])
def test_what_only_the_front_end_decides_is_no_option(make: Maker, name: str) -> None:
    engine = make()
    with pytest.raises(VLLMValidationError, match=f"^options must be among .*; got '{name}'"):
        engine.add_request("a", [1, 2], params(), **{name: 1})  # type: ignore[arg-type]
    assert not engine.has_unfinished_requests()


def test_a_request_that_cannot_be_handed_over_leaves_nothing(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    send = engine.engine_core.add_request

    def second_fails(request: Any) -> Any:
        if request.request_id.startswith("1_"):
            raise OSError("no")
        return send(request)

    monkeypatch.setattr(engine.engine_core, "add_request", second_fails)
    with pytest.raises(OSError, match="no"):
        engine.add_request("a", [1], params(n=2, temperature=1.0))
    assert engine.get_num_unfinished_requests() == 0
    assert engine.engine_core.call_utility("reset_prefix_cache") is True


def test_an_aborted_request_gives_nothing_more(make: Maker) -> None:
    engine = make()
    first = engine.add_request("a", [1], params(output_kind=DELTA, n=2, temperature=1.0))
    engine.step()
    engine.abort_request([first, "unknown"])
    assert engine.step() == []
    assert engine.engine_core.call_utility("reset_prefix_cache") is True


def test_a_request_that_the_front_end_cannot_go_on_with_is_gone(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    internal_id = engine.add_request("a", [1], params())
    state = engine.output_processor.request_states[internal_id]
    monkeypatch.setattr(state.detokenizer, "update", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.step()
    assert not engine.has_unfinished_requests()


def test_a_dead_engine_core_ends_every_request(make: Maker) -> None:
    engine = make(True)
    engine.add_request("a", [1], params(max_tokens=400))
    os.kill(engine.engine_core.ready[0].pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        run(engine)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        engine.add_request("b", [1], params())


def test_a_constructor_that_fails_leaves_nothing(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_ENGINE_READY_TIMEOUT_S", "0")
    with pytest.raises(EngineStartError, match="was not ready"):
        LLMEngine(toy_config(tiny_model_path))
    assert children() == []


def test_the_journey_is_recorded(make: Maker, tmp_path: Path) -> None:
    engine = make(True, trace_level=2, trace_dir=str(tmp_path / "run"))
    engine.add_request("a", [1, 2], params())
    engine.add_request("b", [1, 2], params(output_kind=DELTA))
    with pytest.raises(VLLMValidationError):
        engine.add_request("c", [], params())
    run(engine)
    engine.shutdown()
    requests = {request.accept.external_id: request for request in load_run(tmp_path / "run").requests if request.accept}
    ends = {name: request.close for name, request in requests.items()}
    assert {name: end.outcome for name, end in ends.items() if end} == {"a": "finished", "b": "finished", "c": "invalid"}
    for end in ends.values():
        assert end is not None
        assert end.puts == end.takes + end.staples + end.left
    assert len(requests["a"].posts) == 1
    assert [stay.receive is not None for stay in requests["a"].stays] == [True]


def test_calls(make: Maker) -> None:
    engine = make()
    assert engine.collective_rpc("get_info")[0]["attention_backend"] == "toy"
    assert engine.reset_prefix_cache() is True
