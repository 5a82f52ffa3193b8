"""Frames: what goes out comes back, arrays included; what cannot go out raises; garbage never passes as a message."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_lite.wire.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, UtilityOutput
from vllm_lite.wire.serial_utils import INLINE_BELOW, MsgpackDecoder, MsgpackEncoder
from vllm_lite.wire.step import LogprobsLists


class Letter(msgspec.Struct, array_like=True):
    array: npt.NDArray[np.float32]
    rest: Any = None


def copies(frames: list[Any]) -> list[bytes]:
    return [bytes(f) for f in frames]


@pytest.mark.parametrize(
    ("size", "num_frames"), [(0, 1), (INLINE_BELOW // 4 - 1, 1), (INLINE_BELOW // 4, 2), (INLINE_BELOW, 2)]
)
def test_small_arrays_ride_inline_and_big_ones_in_a_frame_of_their_own(size: int, num_frames: int) -> None:
    array = np.arange(size, dtype=np.float32)
    frames = copies(MsgpackEncoder().encode(Letter(array)))
    assert len(frames) == num_frames
    back = MsgpackDecoder(Letter).decode(frames)
    assert back.array.dtype == np.float32
    np.testing.assert_array_equal(back.array, array)


def test_arrays_keep_shape_order_and_dtype_also_where_the_type_is_any() -> None:
    transposed = np.arange(600, dtype=np.int64).reshape(20, 30).T
    frames = copies(
        MsgpackEncoder().encode(UtilityOutput(7, None, {"a": [transposed], "b": np.array(3.5), "c": np.zeros((0, 4))}))
    )
    result = MsgpackDecoder(UtilityOutput).decode(frames).result
    np.testing.assert_array_equal(result["a"][0], transposed)
    assert result["b"].shape == ()
    assert result["b"] == 3.5
    assert result["c"].shape == (0, 4)


def test_big_arrays_are_not_copied() -> None:
    array = np.zeros(1000, dtype=np.uint8)
    frame = MsgpackEncoder().encode(Letter(array))[1]
    array[5] = 9
    assert bytes(frame)[5] == 9
    decoded = MsgpackDecoder(UtilityOutput).decode(copies(MsgpackEncoder().encode(UtilityOutput(1, None, array)))).result
    assert not decoded.flags.writeable


def test_logprobs_of_a_bag_come_back_equal() -> None:
    logprobs = LogprobsLists(
        np.arange(42, dtype=np.int32).reshape(2, 21),
        np.linspace(-9, 0, 42, dtype=np.float32).reshape(2, 21),
        np.array([1, 4], np.int32),
    )
    bag = EngineCoreOutputs(
        outputs=[EngineCoreOutput("r", [5, 6], new_logprobs=logprobs, pooling_output=np.ones(3, np.float32))]
    )
    back = MsgpackDecoder(EngineCoreOutputs).decode(copies(MsgpackEncoder().encode(bag))).outputs[0]
    assert back.new_logprobs is not None
    np.testing.assert_array_equal(back.new_logprobs.logprob_token_ids, logprobs.logprob_token_ids)
    np.testing.assert_array_equal(back.new_logprobs.logprobs, logprobs.logprobs)
    np.testing.assert_array_equal(back.new_logprobs.sampled_token_ranks, logprobs.sampled_token_ranks)
    np.testing.assert_array_equal(back.pooling_output, np.ones(3, np.float32))


@pytest.mark.parametrize(
    "value",
    [
        object(),
        1 << 64,
        -(1 << 63) - 1,
        "\ud800",
        len,
        np.array([object()]),
        np.array(["text"]),
        np.zeros(2, dtype=[("a", "i4")]),
        Exception("x"),
    ],
)
def test_what_has_no_place_on_the_wire_is_a_type_error_and_the_encoder_lives(value: object) -> None:
    encoder = MsgpackEncoder()
    with pytest.raises(TypeError, match="encoded"):
        encoder.encode([np.zeros(500), value])
    assert MsgpackDecoder().decode(copies(encoder.encode([1, "a"]))) == [1, "a"]


def test_a_value_that_holds_itself_is_a_type_error() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(TypeError, match="encoded"):
        MsgpackEncoder().encode(ring)


def test_a_decoder_accepts_one_buffer() -> None:
    assert MsgpackDecoder().decode(MsgpackEncoder().encode({"a": 1})[0]) == {"a": 1}


def test_no_frame_at_all_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        MsgpackDecoder(Letter).decode([])


def test_a_message_whose_array_frame_is_missing_is_refused() -> None:
    frames = copies(MsgpackEncoder().encode(Letter(np.zeros(1000, np.float32))))
    with pytest.raises(msgspec.DecodeError, match="no frame 1"):
        MsgpackDecoder(Letter).decode(frames[:1])
    with pytest.raises(msgspec.DecodeError, match="not a message"):
        MsgpackDecoder(Letter).decode([])


def test_something_else_than_an_array_in_an_array_field_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError, match="expected"):
        MsgpackDecoder(Letter).decode(msgspec.msgpack.encode([[1, 2], None]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_garbage_is_only_ever_a_decode_error(frames: list[bytes]) -> None:
    for decoder in (MsgpackDecoder(EngineCoreRequest), MsgpackDecoder(UtilityOutput), MsgpackDecoder()):
        try:
            decoder.decode(frames)
        except msgspec.DecodeError:
            continue


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_messages_are_only_ever_a_decode_error(data: st.DataObject) -> None:
    frames = copies(MsgpackEncoder().encode(Letter(np.arange(300, dtype=np.float32), {"x": np.arange(3)})))
    body = bytearray(frames[0])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        MsgpackDecoder(Letter).decode([bytes(body), frames[1]])
    except msgspec.DecodeError:
        return


def test_invalid_parameters_in_a_request_are_a_decode_error_naming_the_field() -> None:
    body = msgspec.msgpack.encode(["r", [1], None, {"temperature": -1.0}, None, 0.0])
    with pytest.raises(msgspec.DecodeError, match="temperature"):
        MsgpackDecoder(EngineCoreRequest).decode(body)
