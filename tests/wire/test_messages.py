"""Golden bytes: the wire changes only where somebody means it to (and then PROTOCOL_VERSION does too)."""

from typing import Any

import msgspec
import numpy as np
import pytest

from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm_lite.wire.messages import (
    ENGINE_CORE_DEAD,
    PROTOCOL_VERSION,
    EngineCoreAbort,
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreReadyResponse,
    EngineCoreRequest,
    EngineCoreRequestType,
    EngineHello,
    EngineInit,
    EngineStartFailed,
    FinishReason,
    UtilityOutput,
)
from vllm_lite.wire.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm_lite.wire.stats import PrefillStats, PrefixCacheStats, SchedulerStats
from vllm_lite.wire.step import CachedRequestData, LogprobsLists, ModelRunnerOutput, NewRequestData, SchedulerOutput

SPEC = FullAttentionSpec(16, 2, 16, 16, "float32", 128)
PARAMS = SamplingParams(temperature=0.5, stop="end", max_tokens=7, output_kind=RequestOutputKind.DELTA)

GOLDEN: dict[str, tuple[Any, str]] = {
    "request": (
        EngineCoreRequest(
            "r-1",
            [1, 300],
            None,
            PARAMS,
            None,
            1.5,
            cache_salt="salt",
            priority=-1,
            trace_headers={"traceparent": "00-a-b-01"},
            external_req_id="r",
        ),
        "dc0015a3722d319201cd012cc0de0004ab74656d7065726174757265cb3fe0000000000000a473746f7091a3656e64aa6d61785f"
        "746f6b656e7307ab6f75747075745f6b696e6401c0cb3ff8000000000000c0a473616c74c0c00000ff81ab747261636570617265"
        "6e74a930302d612d622d3031c2a172c0c0c0c0c2",
    ),
    "pooling request": (
        EngineCoreRequest("p", [1], None, None, PoolingParams(pooling_type="mean"), 0.0),
        "dc0015a1709101c0c081ac706f6f6c696e675f74797065a46d65616ecb0000000000000000c0c0c0c0000000c0c2c0c0c0c0c0c2",
    ),
    "abort": (
        EngineCoreAbort(["a", "b"], "stop_string", {"a": "00-a-b-01"}),
        "9392a161a162ab73746f705f737472696e6781a161a930302d612d622d3031",
    ),
    "bag": (
        EngineCoreOutputs(
            2,
            [
                EngineCoreOutput("a", [65]),
                EngineCoreOutput(
                    "b",
                    [66, 67],
                    finish_reason=FinishReason.STOP,
                    stop_reason=67,
                    events=[EngineCoreEvent(EngineCoreEventType.QUEUED, 0.25)],
                    prefill_stats=PrefillStats(9, 4),
                    error="why",
                ),
            ],
            SchedulerStats(1, 2, 0.5, PrefixCacheStats(1, 9, 4), 17),
            12.5,
            finished_requests={"b"},
            step_trace="00-c-d-01",
        ),
        "9902929aa1619141c0c0c0c0c0c0c0c09aa162924243c0c0c00043919201cb3fd0000000000000920904a3776879980102cb3fe0"
        "0000000000009601090400000011000000cb4029000000000000c091a162c0a930302d632d642d3031c0",
    ),
    "pong": (EngineCoreOutputs(0, timestamp=1.0, pong=3), "990090c0cb3ff0000000000000c0c0c0c003"),
    "utility answer": (
        EngineCoreOutputs(0, timestamp=1.0, utility_output=UtilityOutput(5, None, {"x": [1, None, True]})),
        "990090c0cb3ff00000000000009305c081a1789301c0c3c0c0c0c0",
    ),
    "utility failure": (
        EngineCoreOutputs(0, timestamp=1.0, utility_output=UtilityOutput(5, "no such method")),
        "990090c0cb3ff00000000000009305ae6e6f2073756368206d6574686f64c0c0c0c0c0",
    ),
    "hello": (EngineHello(1, 4242, 3), "9301cd109203"),
    "init": (EngineInit(["ipc://in"], ["ipc://out"], b"\x80"), "9491a86970633a2f2f696e91a96970633a2f2f6f7574c40180c0"),
    "ready": (
        EngineCoreReadyResponse(1, 0, 4242, 4096, 100, 16, "float32", "cpu", 320, "uni"),
        "dc00100100cd1092cd10006410a7666c6f61743332a3637075cd0140a3756e69010000a0cb000000000000000090",
    ),
    "start failed": (
        EngineStartFailed("UnsupportedModelError", "why"),
        "92b5556e737570706f727465644d6f64656c4572726f72a3776879",
    ),
    "step plan": (
        SchedulerOutput(
            4,
            [NewRequestData("a", [1, 2], 2, PARAMS, None, [[1]], 0)],
            CachedRequestData(["b", "c"], [None, [[7]]], [5, 16], [1, 2]),
            {"b": 1, "c": 1, "a": 2},
            4,
            ["d"],
            ["e"],
            "00-e-f-01",
        ),
        "98049197a16192010202de0004ab74656d7065726174757265cb3fe0000000000000a473746f7091a3656e64aa6d61785f746f6b"
        "656e7307ab6f75747075745f6b696e6401c0919101009492a162a16392c091910792051092010283a16201a16301a161020491a1"
        "6491a165a930302d652d662d3031",
    ),
    "step result": (
        ModelRunnerOutput(
            ["b", "a"],
            [[65], []],
            [LogprobsLists(np.array([[65, 66]], np.int32), np.array([[-0.5, -1]], np.float32), np.array([1], np.int32)), None],
            errors={"a": "why"},
        ),
        "9692a162a161929141909293c7120193a33c6934920102c4084100000042000000c7120193a33c6634920102c408000000bf0000"
        "80bfc70d0193a33c69349101c40401000000c080c081a161a3776879",
    ),
    "kv cache config": (
        KVCacheConfig(10, {"l0": SPEC}, [KVCacheGroupSpec(["l0"], SPEC)]),
        "930a81a26c309610021010a7666c6f61743332cc80919291a26c309610021010a7666c6f61743332cc80",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    message, golden = GOLDEN[name]
    frames = [bytes(f) for f in MsgpackEncoder().encode(message)]
    assert [f.hex() for f in frames] == [golden]
    back = MsgpackDecoder(type(message)).decode(frames)
    assert [bytes(f) for f in MsgpackEncoder().encode(back)] == frames
    if name != "step result":  # numpy arrays have no plain ==
        assert back == message


@pytest.mark.parametrize(
    ("message_type", "short"),
    [
        (EngineCoreRequest, ["r", [1], None, None, None, 0.0]),
        (EngineCoreAbort, [["a"]]),
        (EngineCoreOutput, ["a", [65]]),
        (EngineCoreOutputs, [1]),
        (SchedulerStats, [3]),
        (EngineCoreReadyResponse, [1, 0, 1, 64, 9, 16, "float32", "cpu", 320, "uni"]),
        (ModelRunnerOutput, [["a"], [[1]]]),
        (SchedulerOutput, [0, [], [], {}, 0]),
    ],
)
def test_missing_trailing_fields_become_defaults_and_unknown_ones_are_skipped(
    message_type: type[Any], short: list[Any]
) -> None:
    decoded = MsgpackDecoder(message_type).decode(msgspec.msgpack.encode(short))
    full = msgspec.msgpack.decode(msgspec.msgpack.encode(decoded))
    assert len(full) > len(short)
    longer = MsgpackDecoder(message_type).decode(msgspec.msgpack.encode([*full, "from the future"]))
    assert longer == decoded


def test_type_bytes_and_the_last_word_are_fixed() -> None:
    assert {t.name: t.value for t in EngineCoreRequestType} == {
        "ADD": b"\x00",
        "ABORT": b"\x01",
        "UTILITY": b"\x03",
        "EXECUTOR_FAILED": b"\x04",
        "WAKEUP": b"\x05",
        "PING": b"\x06",
        "CLIENT_GONE": b"\x07",
    }
    assert ENGINE_CORE_DEAD == b"ENGINE_CORE_DEAD"
    assert PROTOCOL_VERSION == 4
    assert [str(r) for r in FinishReason] == ["stop", "length", "abort", "error", "repetition"]


def test_a_bag_knows_when_it_was_made() -> None:
    first, second = EngineCoreOutputs(), EngineCoreOutputs()
    assert 0 < first.timestamp <= second.timestamp
    assert EngineCoreOutputs(timestamp=3.0).timestamp == 3.0


def test_a_request_has_one_kind_of_parameters() -> None:
    request, _ = GOLDEN["request"]
    pooling, _ = GOLDEN["pooling request"]
    assert request.params is request.sampling_params
    assert pooling.params is pooling.pooling_params
