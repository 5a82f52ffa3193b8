"""One parent, n children: ids, seeds, and who may speak when."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frontend.helpers import CUMULATIVE, DELTA, FINAL_ONLY, request
from vllm_lite.frontend.parallel_sampling import ParentRequest
from vllm_lite.outputs import CompletionOutput


def parent(**params: Any) -> ParentRequest:
    made = ParentRequest(request("p", **{"n": 3, **params}))
    for index in range(made.n):
        made.child_requests.add(made.get_child_info(index)[0])
    return made


def part(index: int, text: str = "x", finished: bool = False) -> CompletionOutput:
    return CompletionOutput(index, text, [1], finish_reason="stop" if finished else None)


def test_children_are_numbered_and_ask_for_one_answer_each() -> None:
    made = parent()
    infos = [made.get_child_info(index) for index in range(3)]
    assert [child_id for child_id, _ in infos] == ["0_p", "1_p", "2_p"]
    assert made.external_req_id == "ext-p"
    assert all(params.n == 1 for _, params in infos)
    assert infos[0][1] is infos[1][1]  # without a seed one value serves all


def test_each_child_has_a_seed_of_its_own() -> None:
    made = parent(seed=2**63 - 2)
    assert [made.get_child_info(index)[1].seed for index in range(3)] == [2**63 - 2, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE])
def test_case_11_parts_pass_through_and_only_the_last_one_finishes(kind: Any) -> None:
    made = parent(output_kind=kind)
    steps = [
        ("1_p", part(1)),
        ("0_p", part(0, finished=True)),
        ("2_p", part(2, finished=True)),
        ("1_p", part(1, finished=True)),
    ]
    assert [made.get_outputs(*step) for step in steps] == [([output], i == 3) for i, (_, output) in enumerate(steps)]


def test_case_11_final_only_waits_for_all_and_keeps_their_order() -> None:
    made = parent(output_kind=FINAL_ONLY)
    outputs = {index: part(index, f"text {index}", finished=True) for index in range(3)}
    assert made.get_outputs("2_p", outputs[2]) == ([], False)
    assert made.get_outputs("0_p", outputs[0]) == ([], False)
    assert made.get_outputs("1_p", outputs[1]) == ([outputs[0], outputs[1], outputs[2]], True)
