from __future__ import annotations

from vllm_lite.outputs import STREAM_FINISHED, CompletionOutput, Logprob, RequestOutput


def letter(*completions: CompletionOutput, finished: bool = False) -> RequestOutput:
    return RequestOutput("r", "prompt", [1, 2], None, list(completions), finished)


def test_stapling_deltas_appends() -> None:
    first = letter(CompletionOutput(0, "Hel", [1, 2], cumulative_logprob=-1.0, logprobs=[{1: Logprob(-1.0, 1, "Hel")}]))
    second = CompletionOutput(
        0, "lo", [3], cumulative_logprob=-1.5, logprobs=[{3: Logprob(-0.5, 1, "lo")}], finish_reason="stop", stop_reason=9
    )
    first.add(letter(second, finished=True), aggregate=True)
    (stapled,) = first.outputs
    assert (stapled.text, stapled.token_ids, stapled.cumulative_logprob) == ("Hello", [1, 2, 3], -1.5)
    assert stapled.logprobs == [{1: Logprob(-1.0, 1, "Hel")}, {3: Logprob(-0.5, 1, "lo")}]
    assert (stapled.finish_reason, stapled.stop_reason, stapled.finished(), first.finished) == ("stop", 9, True, True)


def test_stapling_logprobs_on_to_none() -> None:
    first = letter(CompletionOutput(0, "", []))
    first.add(letter(CompletionOutput(0, "a", [1], logprobs=[{1: Logprob(-1.0)}])), aggregate=True)
    assert first.outputs[0].logprobs == [{1: Logprob(-1.0)}]


def test_stapling_snapshots_keeps_the_newer() -> None:
    first, newer = letter(CompletionOutput(0, "Hel", [1, 2])), CompletionOutput(0, "Hello", [1, 2, 3])
    first.add(letter(newer), aggregate=False)
    assert first.outputs == [newer]
    assert not first.finished


def test_stapling_goes_by_index() -> None:
    first = letter(CompletionOutput(1, "b", [2]))
    first.add(letter(CompletionOutput(0, "a", [1]), CompletionOutput(1, "B", [3]), finished=True), aggregate=True)
    assert [(c.index, c.text, c.token_ids) for c in first.outputs] == [(1, "bB", [2, 3]), (0, "a", [1])]
    assert first.finished


def test_a_finished_letter_stays_finished() -> None:
    first = letter(CompletionOutput(0, "a", [1], finish_reason="length"), finished=True)
    first.add(letter(CompletionOutput(1, "b", [2])), aggregate=True)
    assert first.finished


def test_every_letter_is_true_even_the_empty_one() -> None:
    assert bool(STREAM_FINISHED)
    assert bool(letter())
