"""A thousand requests that end in every way there is, in a KV cache that holds a handful: each reader gets exactly its tokens,
and nothing is left anywhere."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.flow.conftest import MakeEngine
from vllm_lite import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.tracing.journey.load import load_run
from vllm_lite.tracing.journey.model import LATE, Run

COUNT = 1000
DELTA = RequestOutputKind.DELTA
ENDINGS = ("whole", "slow", "stop string", "stop token", "break", "cancel", "cancel early", "abort", "abort internal")
STARTS = [list(b"The first of three beginnings that many prompts share")[:length] for length in (8, 20, 33)]
SMALL = {
    "block_size": 4,
    "num_gpu_blocks_override": 40,
    "max_model_len": 80,
    "max_num_seqs": 12,
    "max_num_batched_tokens": 40,
    "scheduling_policy": "priority",
}


@dataclass
class Plan:
    """One request, how it ends, and what each of its answers is where nobody cuts it short."""

    name: str
    prompt: list[int]
    params: SamplingParams
    priority: int
    ending: str
    after: int  # letters before it is cut short
    answers: list[list[int]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    parts: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, list[str]] = field(default_factory=dict)
    finished: int = 0  # letters that said so


def make_plan(number: int, rng: random.Random) -> Plan:
    prompt = rng.choice(STARTS) + rng.choices(range(32, 127), k=rng.randrange(1, 12))
    n = rng.choice((1, 1, 1, 2, 3))
    ending = rng.choice(ENDINGS)
    values: dict[str, Any] = {"n": n, "seed": rng.randrange(100), "max_tokens": rng.randrange(1, 25), "ignore_eos": True}
    values["include_stop_str_in_output"] = True  # then text and ids agree at every end
    values["output_kind"] = rng.choice((DELTA, *RequestOutputKind))
    plain = answers_of(prompt, SamplingParams(**values))[0]
    place = rng.randrange(len(plain))
    if ending == "stop string":
        values["stop"] = [bytes(plain[place : place + 2]).decode()]
    if ending == "stop token":
        values |= {"stop_token_ids": [plain[place]], "min_tokens": rng.randrange(place + 1)}
    params = SamplingParams(**values)
    plan = Plan(f"r{number // 2}", prompt, params, rng.randrange(3), ending, rng.randrange(1, 6))  # two share each name
    plan.answers = answers_of(prompt, params)
    return plan


def answers_of(prompt: list[int], params: SamplingParams) -> list[list[int]]:
    """The toy's answers, each cut where its stop string or stop token is complete."""
    answers = []
    for index in range(params.n):
        child = params.clone()
        child.seed = (params.seed or 0) + index
        child.all_stop_token_ids = set(params.stop_token_ids or ())  # as the front end fills it in
        answer = expected_tokens(prompt, params.max_tokens or 0, child)
        text, stop_ids = bytes(answer).decode(), child.stop_token_ids or ()
        ends = [end for end, token in enumerate(answer, 1) if token in stop_ids and end > child.min_tokens]
        ends += [text.index(stop) + len(stop) for stop in child.stop or () if stop in text]
        answers.append(answer[: min(ends, default=len(answer))])
    return answers


async def read(engine: AsyncLLM, plan: Plan, before: Plan) -> None:
    """Read the plan's stream and end it as planned. A slow reader waits between letters for the request `before` it."""
    task = asyncio.current_task()
    assert task is not None
    if plan.ending == "cancel early":
        asyncio.get_running_loop().call_soon(task.cancel)
    letters = 0
    try:
        async for output in engine.generate(plan.prompt, plan.params, plan.name, priority=plan.priority):
            note(plan, output)
            letters += 1
            if plan.ending == "slow":
                await before.over.wait()
            if letters == plan.after:
                await cut_short(engine, plan, task)
                if plan.ending == "break":
                    break
    finally:
        plan.over.set()


async def cut_short(engine: AsyncLLM, plan: Plan, task: asyncio.Task[None]) -> None:
    if plan.ending == "cancel":
        task.cancel()
    elif plan.ending == "abort":
        await engine.abort(plan.name)  # the other request of this name too
    elif plan.ending == "abort internal":
        await engine.abort(list(engine.output_processor.external_req_ids.get(plan.name, ())), internal=True)


def note(plan: Plan, output: RequestOutput) -> None:
    assert output.request_id == plan.name
    plan.finished += output.finished
    for part in output.outputs:
        if plan.params.output_kind is DELTA:
            plan.parts.setdefault(part.index, []).extend(part.token_ids)
            plan.texts[part.index] = plan.texts.get(part.index, "") + part.text
        else:
            plan.parts[part.index], plan.texts[part.index] = part.token_ids, part.text
        if part.finish_reason is not None:
            plan.reasons.setdefault(part.index, []).append(part.finish_reason)


def check(plan: Plan) -> bool:
    """What the reader got is right as far as it goes; True where it is whole."""
    for index, tokens in plan.parts.items():
        assert tokens == plan.answers[index][: len(tokens)], plan
        assert bytes(tokens).decode().startswith(plan.texts[index]), plan
        said = set(plan.reasons.get(index, ()))
        assert len(said) <= 1, plan  # a CUMULATIVE letter may repeat it
        if said - {"abort"}:
            assert (tokens, plan.texts[index]) == (plan.answers[index], bytes(tokens).decode()), plan
    assert plan.finished <= 1, plan
    whole = [index for index, said in plan.reasons.items() if "abort" not in said]
    return bool(plan.finished) and len(whole) == plan.params.n


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110  (these conditions have no event)
        await asyncio.sleep(0)


def check_run(run: Run, plans: list[Plan]) -> None:
    """Every letter that was put into a mailbox was taken, stapled or left; what was taken is what the readers have."""
    assert (run.dropped, run.torn, run.unclaimed) == ([], 0, 0)
    assert sum(len(step.preempted) for step in run.steps) > 50
    assert all(journey.num_closes == 1 for journey in run.requests)
    deltas = {first.name for first, second in pairs(plans) if first.params.output_kind is second.params.output_kind is DELTA}
    taken: Counter[str] = Counter()
    staples = 0
    for journey in run.requests:
        close, name = journey.close, journey.accept.external_id
        assert close is not None
        assert close.puts == close.takes + close.staples + close.left
        staples += close.staples
        tokens = sum(take.tokens for take in journey.takes)
        taken[name] += tokens
        if "abort" not in close.finish_reasons and close.outcome == "finished":
            letters = [letter.tokens for letter in journey.letters if letter.fate != LATE]
            assert len(letters) == close.puts + close.kept_back
            assert name not in deltas or sum(letters) == tokens + close.left_tokens
    assert staples > 50
    for first, second in pairs(plans):
        received = sum(len(tokens) for plan in (first, second) for tokens in plan.parts.values())
        assert first.name not in deltas or taken[first.name] == received


def pairs(plans: list[Plan]) -> list[tuple[Plan, Plan]]:
    """Those that share a name."""
    return list(zip(plans[::2], plans[1::2], strict=True))


@pytest.mark.parametrize("planned_ahead", [False, True])
async def test_nothing_is_lost_doubled_or_left(make_engine: MakeEngine, tmp_path: Path, planned_ahead: bool) -> None:
    rng = random.Random(4)
    plans = [make_plan(number, rng) for number in range(COUNT)]
    assert {plan.ending for plan in plans} == set(ENDINGS)
    engine = make_engine(**SMALL, async_scheduling=planned_ahead, trace_level=2, trace_dir=str(tmp_path / "run"))
    plans[0].ending = "whole"  # nobody is before it
    befores = [plans[0], *plans[:-1]]
    async with asyncio.timeout(60):
        tasks = [asyncio.create_task(read(engine, plan, before)) for plan, before in zip(plans, befores, strict=True)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for plan, result in zip(plans, results, strict=True):
            cancelled = plan.ending.startswith("cancel") and isinstance(result, asyncio.CancelledError)
            assert result is None or cancelled, (plan, result)
            assert cancelled or plan.ending == "break" or plan.finished == 1, plan
        whole = {id(plan) for plan in plans if check(plan)}
        assert len(whole) > COUNT // 3
        processor = engine.output_processor
        await until(lambda: not processor.external_req_ids)
        assert (processor.request_states, processor.parent_requests, engine.get_num_queued_tokens()) == ({}, {}, 0)
        while not await engine.reset_prefix_cache():  # noqa: ASYNC110  (until no request holds a block)
            await asyncio.sleep(0)
    engine.shutdown()
    check_run(load_run(tmp_path / "run"), plans)
