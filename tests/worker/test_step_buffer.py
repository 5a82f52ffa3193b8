from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_lite.worker.step_buffer import StepBuffer, upload

CPU = torch.device("cpu")


def test_arrays_arrive_converted_and_in_shape() -> None:
    buffer = StepBuffer(64, torch.int32, CPU)
    first, second, third = np.array([1, -2, 3]), np.arange(10, 16).reshape(3, 2), np.array([7])
    views = buffer.views(first, second, third)
    assert [view.tolist() for view in views] == [[1, -2, 3], [[10, 11], [12, 13], [14, 15]], [7]]
    assert {view.dtype for view in views} == {torch.int32}
    assert {view.untyped_storage().data_ptr() for view in views} == {buffer.tensor.data_ptr()}


@pytest.mark.parametrize(("dtype", "offsets"), [(torch.int32, [0, 4, 12]), (torch.int64, [0, 4, 10])])
def test_every_array_begins_at_a_multiple_of_sixteen_bytes(dtype: torch.dtype, offsets: list[int]) -> None:
    assert StepBuffer(64, dtype, CPU).upload(np.zeros(3), np.zeros((3, 2)), np.zeros(9)) == offsets


def test_equal_sizes_mean_equal_addresses_whatever_the_last_size() -> None:
    buffer = StepBuffer(64, torch.int64, CPU)

    def addresses(*sizes: int) -> list[int]:
        return [view.data_ptr() for view in buffer.views(*(np.ones(size) for size in sizes))]

    assert addresses(3, 5, 2) == addresses(3, 5, 30)
    assert addresses(3, 5, 2) != addresses(3, 7, 2)


def test_the_next_step_replaces_the_numbers() -> None:
    buffer = StepBuffer(8, torch.int64, CPU)
    before = buffer.views(np.array([1, 2, 3]))[0]
    buffer.upload(np.array([4, 5]))
    assert before.tolist() == [4, 5, 3]


def test_a_step_too_large_for_the_buffer_is_an_error() -> None:
    with pytest.raises(ValueError, match="reshape"):
        StepBuffer(4, torch.int64, CPU).upload(np.zeros(2), np.zeros(3))


def test_upload_makes_a_tensor_of_its_own() -> None:
    array = np.array([True, False])
    assert upload(array, CPU).tolist() == [True, False]
    assert upload(np.array([1.5], np.float32), CPU).dtype == torch.float32


def test_on_a_gpu_a_staging_is_written_only_after_its_last_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's path on the CPU: allocations land here, events note what is asked of them."""
    log: list[str] = []

    class Event:
        number = 0

        def __init__(self) -> None:
            self.name = f"event {Event.number}"
            Event.number += 1

        def synchronize(self) -> None:
            log.append(f"wait for {self.name}")

        def record(self) -> None:
            log.append(f"record {self.name}")

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda size, **options: zeros(size, dtype=options["dtype"]))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    buffer = StepBuffer(8, torch.int64, torch.device("cuda"))
    stagings = buffer._stagings
    assert len({buffer.tensor.data_ptr(), *(staging.data_ptr() for staging in stagings)}) == 3
    for step in range(1, 4):
        assert buffer.views(np.array([step, step]))[0].tolist() == [step, step]
    assert [staging[0].item() for staging in stagings] == [2, 3]
    waits = ["wait for event 1", "record event 1", "wait for event 0", "record event 0"]
    assert log == [*waits, *waits[:2]]
