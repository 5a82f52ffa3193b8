"""Whatever the schedule, the tokens are those of the plain reference, and every block comes back."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine_core.harness import Bench, make_config
from vllm_lite.engine_core.request import RequestStatus
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.wire.messages import FinishReason


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    max_num_seqs = draw(st.integers(1, 6))
    chunked = draw(st.booleans())
    num_blocks, block_size = draw(st.integers(3, 24)), draw(st.sampled_from([1, 2, 3, 4, 8]))
    max_model_len = (num_blocks - 1) * block_size
    return {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "caching": draw(st.booleans()),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max(max_num_seqs, draw(st.integers(1, 40)) if chunked else max_model_len),
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 7])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
    }


def random_request(rng: random.Random, max_model_len: int) -> tuple[list[int], SamplingParams, dict[str, Any]]:
    """A prompt that likely shares its beginning with others, parameters, and the other fields."""
    length = rng.randint(1, rng.choice([max_model_len - 1, max(1, max_model_len // 4)]))
    family = rng.choice([b"the quick brown fox ", b"the slow red fox and ", b"z"])
    prompt = list((family * length)[:length])
    for _ in range(rng.choice([0, 0, 1])):
        prompt[rng.randrange(length)] = rng.randint(40, 60)
    stop = [rng.randint(32, 126) for _ in range(rng.choice([0, 0, 0, 4]))]
    params = SamplingParams(
        max_tokens=rng.choice([1, 5, 12, 40]),
        stop_token_ids=stop,
        seed=rng.choice([None, 1]),
        eos_token_id=rng.randint(32, 126),
    )
    fields = {"priority": rng.randint(-2, 2), "arrival_time": rng.random(), "cache_salt": rng.choice([None, None, "pepper"])}
    return prompt, params, fields


def reference(bench: Bench, request_id: str) -> tuple[list[int], FinishReason]:
    """The whole answer and how it ends, from the parameters alone."""
    request = bench.requests[request_id]
    params = request.sampling_params
    assert params is not None
    room = bench.scheduler.max_model_len - request.num_prompt_tokens
    limit = min(room, request.max_tokens)
    tokens = bench.expected(request_id, limit)
    for count, token in enumerate(tokens, 1):
        if token == params.eos_token_id or token in (params.stop_token_ids or ()):
            return tokens[:count], FinishReason.STOP
    return tokens, FinishReason.LENGTH


def check_answers(bench: Bench, aborted: set[str]) -> None:
    """Everybody has their whole answer, or its beginning, and nothing is left."""
    for request_id, answer in bench.answers.items():
        tokens, finish_reason = reference(bench, request_id)
        if request_id in aborted:
            assert answer.token_ids == tokens[: len(answer.token_ids)]
            assert answer.finish_reason is None
        else:
            assert (answer.token_ids, answer.finish_reason) == (tokens, finish_reason)
    bench.check_empty()


@settings(max_examples=400, deadline=None)
@given(configs(), st.integers(0, 2**32), st.booleans())
def test_any_schedule_yields_the_plain_tokens(config: dict[str, Any], seed: int, with_aborts: bool) -> None:
    rng = random.Random(seed)
    bench = Bench(make_config(**config))
    scheduler, max_model_len = bench.scheduler, bench.scheduler.max_model_len
    todo, aborted = [f"r{i}" for i in range(rng.randint(1, 10))], set[str]()
    newcomers_first = rng.random() < 0.5

    def abort_some() -> None:
        for request_id in [*scheduler.requests, "unknown"]:
            if with_aborts and rng.random() < 0.04:
                gone = scheduler.finish_requests([request_id, request_id], RequestStatus.FINISHED_ABORTED)
                aborted.update(request.request_id for request in gone)

    while todo or scheduler.has_requests():
        while todo and rng.random() < 0.5:
            prompt, params, fields = random_request(rng, max_model_len)
            if newcomers_first:
                fields["priority"] = -len(bench.requests)
            bench.add(todo.pop(), prompt, params, **fields)
        if rng.random() < 0.02:
            assert scheduler.reset_prefix_cache(reset_running_requests=True)
        abort_some()
        plan = scheduler.schedule()
        assert plan.total_num_scheduled_tokens == sum(plan.num_scheduled_tokens.values())
        assert plan.total_num_scheduled_tokens <= config["max_num_batched_tokens"]
        assert all(count > 0 for count in plan.num_scheduled_tokens.values())
        assert len(scheduler.running) <= config["max_num_seqs"]
        result = bench.execute(plan)
        abort_some()
        bench.update(plan, result)
        bench.check_blocks()

    check_answers(bench, aborted)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_the_prefix_cache_is_invisible(seed: int) -> None:
    """Warm answers equal cold ones, after answers that ended by stop, abort and preemption left their blocks behind."""
    rng = random.Random(seed)
    config = {"num_blocks": 14, "block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 16}
    warm = Bench(make_config(**config))
    for i in range(12):
        prompt, params, fields = random_request(rng, 40)
        warm.add(f"r{i}", prompt, params, **fields)
        for _ in range(rng.randint(0, 4)):
            warm.step()
        if rng.random() < 0.3:
            warm.scheduler.finish_requests([rng.choice(list(warm.requests))], RequestStatus.FINISHED_ABORTED)
    warm.run()
    for i in range(6):
        prompt, params, fields = random_request(rng, 40)
        cold = Bench(make_config(caching=False, **config))
        for bench in (warm, cold):
            bench.add(f"again{i}", prompt, params, **fields)
            bench.run()
        assert warm.answers[f"again{i}"].token_ids == cold.answers[f"again{i}"].token_ids
