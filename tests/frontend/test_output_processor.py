"""Rows find their mailboxes; aborts, errors and ends leave no map behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontend.helpers import CUMULATIVE, DELTA, FINAL_ONLY, ids, request, row, texts, word_tokenizer
from vllm_lite import RequestOutputKind
from vllm_lite.exceptions import EngineDeadError, VLLMValidationError
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.output_processor import OutputProcessor
from vllm_lite.frontend.parallel_sampling import ParentRequest
from vllm_lite.frontend.stamps import BagStamp
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.metrics.stats import IterationStats
from vllm_lite.outputs import RequestOutput
from vllm_lite.tracing.request_trace import RequestTrace
from vllm_lite.wire.messages import EngineCoreRequest, FinishReason
from vllm_lite.wire.stats import PrefillStats
from vllm_lite.wire.step import LogprobsLists

LENGTH, STOP, ERROR = FinishReason.LENGTH, FinishReason.STOP, FinishReason.ERROR


@pytest.fixture
def processor(tiny_tokenizer: Tokenizer) -> OutputProcessor:
    return OutputProcessor(tiny_tokenizer)


def add(processor: OutputProcessor, request_id: str = "r", **params: Any) -> RequestOutputCollector:
    made = request(request_id, **params)
    return register(processor, made)


def register(processor: OutputProcessor, made: EngineCoreRequest) -> RequestOutputCollector:
    collector = RequestOutputCollector(made.params.output_kind, made.request_id)
    processor.add_request(made, "prompt", collector)
    return collector


def add_parent(processor: OutputProcessor, n: int = 2, **params: Any) -> tuple[RequestOutputCollector, list[str]]:
    parent = ParentRequest(request("p", n=n, **params))
    collector = RequestOutputCollector(parent.sampling_params.output_kind, "p")
    children = []
    for index in range(n):
        child_id, child_params = parent.get_child_info(index)
        child = request(child_id)
        child.sampling_params, child.external_req_id = child_params, "ext-p"
        processor.add_request(child, "prompt", collector, parent, index)
        children.append(child_id)
    return collector, children


def taken(collector: RequestOutputCollector) -> RequestOutput:
    output = collector.get_nowait()
    assert isinstance(output, RequestOutput)
    return output


def is_empty(processor: OutputProcessor) -> bool:
    maps = (processor.request_states, processor.parent_requests, processor.external_req_ids)
    return not any(maps) and processor.get_num_queued_tokens() == 0 and not processor.has_unfinished_requests()


# ---- rows ------------------------------------------------------------------------------------------------------------------


def test_rows_go_to_their_mailboxes(processor: OutputProcessor) -> None:
    first, second = add(processor, "a"), add(processor, "b")
    processed = processor.process_outputs([row("a", ids("x")), row("b", ids("y"), finish_reason=LENGTH)])
    assert processed.reqs_to_abort == []
    assert (taken(first).outputs[0].text, taken(second).outputs[0].text) == ("x", "y")
    assert list(processor.request_states) == ["a"]


def test_case_4_unknown_rows_are_passed_over(processor: OutputProcessor) -> None:
    collector = add(processor, "a")
    stamp = BagStamp()
    processor.process_outputs([row("gone", [1, 2]), row("a", ids("x"))], stamp=stamp)
    assert taken(collector).outputs[0].text == "x"
    assert (stamp.late, stamp.reqs, stamp.tokens, stamp.fates) == ([("gone", 2)], [0], [1], "p")


def test_a_stop_string_ends_the_request_here_and_asks_for_an_abort(tmp_path: Path) -> None:
    tokenizer, words = word_tokenizer(tmp_path, ["OP tail"])
    processor = OutputProcessor(tokenizer)
    collector = add(processor, stop=["STOP"])
    processor.process_outputs([row("r", ids("aST"))])
    processed = processor.process_outputs([row("r", [words["OP tail"], 98])])
    assert processed.reqs_to_abort == ["r"]
    (completion,) = taken(collector).outputs
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("a", "stop", "STOP")
    assert completion.token_ids == [*ids("aST"), words["OP tail"]]
    assert is_empty(processor)


def test_a_stop_string_in_the_engines_own_last_row_needs_no_abort(processor: OutputProcessor) -> None:
    collector = add(processor, stop=["b"])
    assert processor.process_outputs([row("r", ids("abc"), finish_reason=LENGTH)]).reqs_to_abort == []
    (completion,) = taken(collector).outputs
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("a", "stop", "b")


def test_an_engines_stop_keeps_its_reason(processor: OutputProcessor) -> None:
    collector = add(processor)
    processor.process_outputs([row("r", [97, 7], finish_reason=STOP, stop_reason=7)])
    (completion,) = taken(collector).outputs
    assert (completion.text, completion.token_ids, completion.stop_reason) == ("a", [97, 7], 7)


def test_an_engines_error_ends_one_request_and_says_why(processor: OutputProcessor) -> None:
    collector, other = add(processor), add(processor, "other")
    processor.process_outputs([row("r", [], finish_reason=ERROR, error="bad luck"), row("other", ids("x"))])
    (completion,) = taken(collector).outputs
    assert (completion.finish_reason, completion.stop_reason) == ("error", "bad luck")
    assert taken(other).outputs[0].text == "x"


def test_cached_tokens_come_with_the_first_row(processor: OutputProcessor) -> None:
    collector = add(processor)
    processor.process_outputs([row("r", ids("a"), prefill_stats=PrefillStats(3, 2))])
    processor.process_outputs([row("r", ids("b"))])
    assert taken(collector).num_cached_tokens == 2


def test_case_9_logprobs_are_cut_with_the_ids(processor: OutputProcessor) -> None:
    columns = LogprobsLists(
        np.array([[i] for i in ids("abc")], np.int32), np.full((3, 1), -1, np.float32), np.ones(3, np.int32)
    )
    collector = add(processor, stop=["b"], logprobs=0)
    processor.process_outputs([row("r", ids("abc"), new_logprobs=columns)])
    (completion,) = taken(collector).outputs
    assert (completion.token_ids, [list(r) for r in completion.logprobs or ()]) == (ids("ab"), [[97], [98]])
    assert completion.cumulative_logprob == -2.0


@pytest.mark.parametrize(("by_letter", "reqs"), [(True, [0, 0]), (False, [])])
def test_a_stamp_notes_the_rows_that_did_not_fail(processor: OutputProcessor, by_letter: bool, reqs: list[int]) -> None:
    for name in ("a", "bad", "b"):
        add(processor, name)
    stamp = BagStamp(by_letter=by_letter)
    processor.process_outputs([row("a", [97, 98]), row("bad", ["x"]), row("b", [99])], stamp=stamp)  # type: ignore[list-item]
    assert (stamp.reqs, stamp.tokens, stamp.fates) == (reqs, [2, 1], "pp")
    assert (stamp.late, stamp.gone) == ([("bad", 1)], [1])


def test_the_engines_interval_is_kept_back(tiny_tokenizer: Tokenizer) -> None:
    processor, stamp = OutputProcessor(tiny_tokenizer, stream_interval=2), BagStamp()
    collector = add(processor)
    for text in "abc":
        processor.process_outputs([row("r", ids(text))], stamp=stamp)
    assert stamp.fates == "pks"
    assert taken(collector).outputs[0].text == "abc"


def test_a_row_that_the_front_end_cannot_read_hurts_its_request_alone(
    processor: OutputProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    collector, other = add(processor), add(processor, "other")
    processed = processor.process_outputs([row("r", ["x"]), row("other", ids("y"))])  # type: ignore[list-item]
    assert processed.reqs_to_abort == ["r"]
    with pytest.raises(TypeError):
        collector.get_nowait()
    assert taken(other).outputs[0].text == "y"
    assert list(processor.request_states) == ["other"]
    assert "request r failed" in caplog.text


def test_a_traced_request_is_told_its_figures(processor: OutputProcessor) -> None:
    traces = [RequestTrace(req, "t", "s", level=1) for req in (1, 2)]
    collectors = [RequestOutputCollector(DELTA, name, trace, None) for name, trace in zip("ab", traces, strict=True)]
    for name, collector in zip("ab", collectors, strict=True):
        processor.add_request(request(name, stop=["STOP"], stream_interval=2), None, collector)
    processor.process_outputs([row(name, ids("x"), prefill_stats=PrefillStats(3, 2)) for name in "ab"])
    assert [trace.t_first_token is not None for trace in traces] == [True, True]
    processor.process_outputs([row("a", ids("y"))])
    processor.process_outputs([row("a", ids("STOPPED"))])
    processor.propagate_error(EngineDeadError("gone"))
    assert [
        (trace.num_output_tokens, trace.num_cached_tokens, trace.finish_reasons, trace.stop_reason) for trace in traces
    ] == [(6, 2, ["stop"], "STOP"), (1, 2, [], None)]
    assert [collector.kept_back for collector in collectors] == [1, 0]


# ---- ids -------------------------------------------------------------------------------------------------------------------


def test_case_14_a_live_internal_id_is_refused(processor: OutputProcessor) -> None:
    collector = add(processor)
    with pytest.raises(VLLMValidationError, match="request_id must be the id of no other request"):
        add(processor)
    processor.process_outputs([row("r", ids("x"), finish_reason=LENGTH)])
    assert taken(collector).outputs[0].text == "x"
    assert is_empty(processor)


def test_queued_tokens_are_those_of_prompts_without_a_token(processor: OutputProcessor) -> None:
    for request_id in "abc":
        add(processor, request_id, prompt_token_ids=[1] * 10)
    assert (processor.get_num_unfinished_requests(), processor.get_num_queued_tokens()) == (3, 30)
    processor.process_outputs([row("a", ids("x"))])
    processor.process_outputs([row("a", ids("x"))])
    assert processor.get_num_queued_tokens() == 20
    processor.abort_requests(["b"], internal=True)
    assert processor.get_num_queued_tokens() == 10
    processor.process_outputs([row("c", ids("x"), finish_reason=LENGTH)])
    assert processor.get_num_queued_tokens() == 0


# ---- aborts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("internal", [True, False])
def test_an_abort_flushes_held_back_text_and_ends_the_answer(processor: OutputProcessor, internal: bool) -> None:
    collector = add(processor, stop=["STOP"])
    processor.process_outputs([row("r", ids("aST"))])
    assert processor.abort_requests(["r" if internal else "ext-r"], internal) == ["r"]
    output = taken(collector)
    assert (output.request_id, output.finished) == ("ext-r", True)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("aST", "abort")
    assert is_empty(processor)
    assert processor.abort_requests(["r", "ext-r"], internal) == []


def test_case_12_an_external_id_stands_for_all_requests_under_it(processor: OutputProcessor) -> None:
    first, second = request("a"), request("b")
    first.external_req_id = second.external_req_id = "same"
    collectors = [register(processor, first), register(processor, second)]
    assert processor.abort_requests(["same"], internal=False) == ["a", "b"]
    assert [taken(c).outputs[0].finish_reason for c in collectors] == ["abort", "abort"]
    assert is_empty(processor)


def test_case_12_external_and_internal_ids_are_different_worlds(processor: OutputProcessor) -> None:
    add(processor)
    assert processor.abort_requests(["r"], internal=False) == processor.abort_requests(["ext-r"], internal=True) == []


@pytest.mark.parametrize(("name", "internal"), [("p", True), ("ext-p", False)])
def test_case_12_a_parent_stands_for_its_unfinished_children(processor: OutputProcessor, name: str, internal: bool) -> None:
    """B3: the parent goes too."""
    collector, children = add_parent(processor, n=3)
    processor.process_outputs([row(children[1], ids("x"), finish_reason=LENGTH)])
    collector.get_nowait()
    assert processor.abort_requests([name], internal) == [children[0], children[2]]
    output = taken(collector)
    assert ({c.index: c.finish_reason for c in output.outputs}, output.finished) == ({0: "abort", 2: "abort"}, True)
    assert is_empty(processor)


# ---- several answers -------------------------------------------------------------------------------------------------------


def test_s10_children_that_end_at_different_steps(processor: OutputProcessor) -> None:
    collector, children = add_parent(processor, n=3)
    ends, seen = {0: 2, 1: 5, 2: 9}, []
    for step in range(1, 10):
        live = [(i, child) for i, child in enumerate(children) if step <= ends[i]]
        processor.process_outputs([row(c, ids("x"), finish_reason=LENGTH if step == ends[i] else None) for i, c in live])
        output = taken(collector)
        seen += [(c.index, c.finish_reason) for c in output.outputs if c.finish_reason]
        assert output.finished == (step == 9)
        assert collector.get_nowait() is None
    assert seen == [(0, "length"), (1, "length"), (2, "length")]
    assert is_empty(processor)


def test_s10_only_the_final_output(processor: OutputProcessor) -> None:
    collector, children = add_parent(processor, n=2, output_kind=FINAL_ONLY)
    processor.process_outputs([row(children[1], ids("second"), finish_reason=LENGTH)])
    assert collector.get_nowait() is None
    processor.process_outputs([row(children[0], ids("first"), finish_reason=LENGTH)])
    output = taken(collector)
    assert (output.finished, [(c.index, c.text) for c in output.outputs]) == (True, [(0, "first"), (1, "second")])
    assert is_empty(processor)


def test_snapshots_of_children_do_not_mix(processor: OutputProcessor) -> None:
    collector, children = add_parent(processor, n=2, output_kind=CUMULATIVE)
    for a, b in (("x", "y"), ("z", "w")):
        processor.process_outputs([row(children[0], ids(a)), row(children[1], ids(b))])
    assert {c.index: c.text for c in taken(collector).outputs} == {0: "xz", 1: "yw"}


# ---- death -----------------------------------------------------------------------------------------------------------------


def test_b16_an_error_reaches_everybody_and_nothing_is_kept(processor: OutputProcessor) -> None:
    single, (shared, _) = add(processor), add_parent(processor)
    processor.propagate_error(EngineDeadError("gone"))
    errors = []
    for collector in (single, shared):
        with pytest.raises(EngineDeadError, match="gone") as caught:
            collector.get_nowait()
        errors.append(caught.value)
    assert errors[0] is not errors[1]  # each caller's traceback is its own
    assert is_empty(processor)


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL_ONLY])
def test_what_a_request_gets_does_not_depend_on_who_else_is_there(processor: OutputProcessor, kind: RequestOutputKind) -> None:
    collectors = {name: add(processor, name, output_kind=kind) for name in "abc"}
    outputs: dict[str, list[RequestOutput]] = {name: [] for name in collectors}
    for step, text in enumerate(["x", "é", "z"]):
        rows = [row(name, ids(text + name), finish_reason=LENGTH if step == 2 else None) for name in collectors]
        processor.process_outputs(rows)
        for name, collector in collectors.items():
            if (output := collector.get_nowait()) is not None:
                assert isinstance(output, RequestOutput)
                outputs[name].append(output)
    joined = {name: "".join(texts(got)) if kind is DELTA else texts(got)[-1] for name, got in outputs.items()}
    assert joined == {name: f"x{name}é{name}z{name}" for name in collectors}


async def test_figures_of_a_session_are_those_of_its_parts(tiny_tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(tiny_tokenizer, log_stats=True)
    part = request(max_tokens=2)
    part.resumable, part.prompt_token_ids = True, []
    processor.add_request(part, None, RequestOutputCollector(DELTA, "r"))
    stats = IterationStats()
    for number, prompt in enumerate((ids("one"), ids("three")), 1):
        part = request(prompt_token_ids=prompt, max_tokens=2)
        part.arrival_time = 10.0 * number
        processor.add_part(part, None)
        processor.process_outputs([row("r", ids("a"))], 5.0 * number, stats)
        processor.process_outputs([row("r", ids("b"), finish_reason=LENGTH)], 5.0 * number + 1, stats)
    assert [(r.num_prompt_tokens, r.num_generation_tokens, r.decode_time) for r in stats.finished_requests] == [
        (3, 2, 1.0),
        (5, 2, 1.0),
    ]
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (8, 4)
    assert (len(stats.time_to_first_tokens_iter), stats.inter_token_latencies_iter) == (2, [1.0, 1.0])
    assert processor.end_input("r")
    assert not processor.end_input("r")
    assert is_empty(processor)
