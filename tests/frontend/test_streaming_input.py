"""Prompts that come in parts: with a fake client where the order of things matters, with a real engine core for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.fake_client import FakeClient
from tests.frontend.helpers import CUMULATIVE, DELTA, FINAL_ONLY, ids, row, toy_args
from tests.frontend.test_async_llm import collect, is_empty, joined, params, until
from vllm_lite import AsyncLLM, PoolingParams, RequestOutput, SamplingParams, StreamingInput
from vllm_lite.engine_core.executor.toy import expected_tokens
from vllm_lite.exceptions import EngineDeadError, EngineGenerateError, QueueOverflowError, VLLMValidationError
from vllm_lite.frontend import async_llm
from vllm_lite.wire.messages import FinishReason

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
Parts = AsyncGenerator[StreamingInput, None]


class Talker:
    """A caller whose parts come when the test says so; `closed` once its generator has ended, whichever way."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.asked = 0
        self.closed = False

    async def parts(self) -> Parts:
        try:
            while True:
                self.asked += 1
                part = await self.said.get()
                if part is None:
                    return
                if isinstance(part, BaseException):
                    raise part
                yield part
        finally:
            self.closed = True

    def say(self, prompt: Any, **values: Any) -> None:
        self.said.put_nowait(StreamingInput(prompt, params(**values) if values else None))


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def make(tiny_model_path: Path, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AsyncLLM]]:
    made: list[AsyncLLM] = []

    def build(**options: Any) -> AsyncLLM:
        monkeypatch.setattr(async_llm, "make_async_mp_client", lambda *_: client)
        made.append(AsyncLLM.from_engine_args(toy_args(tiny_model_path, **options)))
        return made[-1]

    yield build
    for llm in made:
        assert is_empty(llm)
        llm.shutdown()


@pytest.fixture
def llm(make: Callable[..., AsyncLLM]) -> AsyncLLM:
    return make()


@pytest.fixture
def talker() -> Talker:
    return Talker()


def listen(llm: AsyncLLM, talker: Talker, **values: Any) -> asyncio.Task[list[RequestOutput]]:
    return asyncio.create_task(collect(llm.generate(talker.parts(), params(**values), "mine")))


async def sent(client: FakeClient, count: int) -> str:
    """So many parts were sent; the session's id."""
    await until(lambda: len(client.added) == count)
    return client.added[0].request_id


async def settled(talker: Talker, client: FakeClient, session: str) -> None:
    """The generator was closed and the core has heard of the end."""
    await until(lambda: talker.closed and client.aborts)
    assert [told for told, _, _ in client.aborts] == [[session]] * len(client.aborts)


# ---- parts and answers -----------------------------------------------------------------------------------------------------


async def test_a_part_is_sent_when_the_answer_before_has_ended(llm: AsyncLLM, client: FakeClient, talker: Talker) -> None:
    task = listen(llm, talker, max_tokens=None)
    talker.say("one")
    talker.say(ids("two"), max_tokens=3, seed=5)
    session = await sent(client, 1)
    first = client.added[0]
    assert (first.resumable, first.continues, first.external_req_id, first.prompt_token_ids) == (
        True,
        False,
        "mine",
        ids("one"),
    )
    client.put(row(session, ids("a")))
    await until(lambda: talker.asked == 2)
    assert len(client.added) == 1
    client.put(row(session, ids("b"), finish_reason=LENGTH))
    await sent(client, 2)
    second = client.added[1]
    assert (second.request_id, second.external_req_id) == (session, "mine")
    assert (second.resumable, second.continues, second.prompt_token_ids) == (True, True, ids("two"))
    assert first.sampling_params is not None
    assert second.sampling_params is not None
    assert (first.sampling_params.max_tokens, second.sampling_params.max_tokens, second.sampling_params.seed) == (509, 3, 5)
    talker.said.put_nowait(None)
    await until(lambda: talker.closed)
    client.put(row(session, ids("c"), finish_reason=LENGTH))
    outputs = await task
    assert joined(outputs) == ("abc", ids("abc"), "length")
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert (outputs[0].prompt_token_ids, outputs[-1].prompt_token_ids) == (ids("one"), ids("onetwo"))
    await settled(talker, client, session)


async def test_the_room_left_is_what_the_session_has_not_taken(llm: AsyncLLM, client: FakeClient, talker: Talker) -> None:
    task = listen(llm, talker, max_tokens=None)
    talker.say([1] * 10)
    session = await sent(client, 1)
    client.put(row(session, [2] * 5, finish_reason=LENGTH))  # the last of them will be dropped
    talker.say([1] * 20)
    await sent(client, 2)
    assert client.added[1].sampling_params is not None
    assert client.added[1].sampling_params.max_tokens == 512 - 10 - 4 - 20
    client.put(row(session, [2], finish_reason=STOP))
    talker.say([1] * 478)
    with pytest.raises(VLLMValidationError, match=r"at most 477 tokens long .* less 34 tokens of the session"):
        await task
    await settled(talker, client, session)


async def test_no_part_after_the_last_answer(llm: AsyncLLM, client: FakeClient, talker: Talker) -> None:
    task = listen(llm, talker)
    talker.say("one")
    session = await sent(client, 1)
    client.put(row(session, ids("a"), finish_reason=LENGTH))
    await until(lambda: llm.output_processor.request_states[session].detokenizer.num_tokens)
    talker.said.put_nowait(None)
    outputs = await task
    assert joined(outputs) == ("a", ids("a"), "length")
    await settled(talker, client, session)
    assert client.aborts == [([session], "api", {})]


@pytest.mark.parametrize("output_kind", [DELTA, CUMULATIVE])
@pytest.mark.parametrize("stream_interval", [1, 3])
async def test_outputs_go_on_over_all_answers(
    llm: AsyncLLM, client: FakeClient, talker: Talker, output_kind: Any, stream_interval: int
) -> None:
    task = listen(llm, talker, output_kind=output_kind, stream_interval=stream_interval)
    for index, answer in enumerate(("abcde", "fgh"), 1):
        talker.say(f"part {index}. ")
        session = await sent(client, index)
        for token in answer[:-1]:
            client.put(row(session, ids(token)))
        client.put(row(session, ids(answer[-1]), finish_reason=LENGTH))
    talker.said.put_nowait(None)
    outputs = await task
    text, token_ids, _ = joined(outputs) if output_kind is DELTA else (outputs[-1].outputs[0].text, None, None)
    assert text == "abcdefgh"
    assert (token_ids or outputs[-1].outputs[0].token_ids) == ids("abcdefgh")
    assert outputs[-1].prompt == "part 1. part 2. "


async def test_an_arrival_time_is_that_of_the_first_part(llm: AsyncLLM, client: FakeClient, talker: Talker) -> None:
    collector = await llm.add_request("mine", talker.parts(), params(), 5.0)
    for number in (1, 2):
        talker.say("x")
        client.put(row(await sent(client, number), ids("a"), finish_reason=LENGTH))
    assert client.added[0].arrival_time == 5.0 < client.added[1].arrival_time
    await llm.abort("mine")
    assert (await collector.get()).finished
    await until(lambda: talker.closed)


async def test_an_empty_generator_gives_nothing(llm: AsyncLLM, client: FakeClient, talker: Talker) -> None:
    talker.said.put_nowait(None)
    assert await listen(llm, talker) == []
    await until(lambda: client.aborts)
    assert client.added == []


async def test_each_part_counts_as_a_request(make: Callable[..., AsyncLLM], client: FakeClient, talker: Talker) -> None:
    llm = make()
    task = listen(llm, talker)
    talker.say("four")
    session = await sent(client, 1)
    assert (llm.get_num_unfinished_requests(), llm.get_num_queued_tokens()) == (1, 4)
    state = llm.output_processor.request_states[session]
    client.put(row(session, ids("a"), finish_reason=LENGTH), timestamp=5.0)
    await until(lambda: llm.get_num_queued_tokens() == 0)
    talker.say("seven..")
    await sent(client, 2)
    assert (llm.get_num_unfinished_requests(), llm.get_num_queued_tokens()) == (1, 7)
    assert state.stats is not None
    assert (state.stats.num_generation_tokens, state.stats.first_token_ts) == (0, 0.0)
    await llm.abort("mine")
    assert (await task)[-1].outputs[0].finish_reason == "abort"
    await settled(talker, client, session)


# ---- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("n", params(n=2, temperature=1.0)),
        ("output_kind", params(output_kind=FINAL_ONLY)),
        ("stop", params(stop=["x"])),
        ("prompt_logprobs", params(prompt_logprobs=1)),
        ("params", PoolingParams()),
        ("params", None),
    ],
)
async def test_what_a_session_cannot_do_is_refused(llm: AsyncLLM, talker: Talker, field: str, wrong: Any) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        await llm.add_request("mine", talker.parts(), wrong)
    assert caught.value.parameter == field
    assert (talker.asked, is_empty(llm)) == (0, True)


async def test_a_prompt_text_is_refused(llm: AsyncLLM, talker: Talker) -> None:
    with pytest.raises(VLLMValidationError, match="prompt_text must be None"):
        await collect(llm.generate(talker.parts(), params(), "mine", prompt_text="x"))


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("field", "part"),
    [
        ("prompt", "no StreamingInput"),
        ("prompt", StreamingInput("")),
        ("prompt_token_ids", StreamingInput([320])),
        ("prompt", StreamingInput([1] * 512)),
        ("n", StreamingInput("x", params(n=2))),
        ("output_kind", StreamingInput("x", params(output_kind=CUMULATIVE))),
        ("detokenize", StreamingInput("x", params(detokenize=False))),
        ("logprobs", StreamingInput("x", params(logprobs=1))),
        ("sampling_params", StreamingInput("x", PoolingParams())),  # type: ignore[arg-type]
        ("allowed_token_ids", StreamingInput("x", params(allowed_token_ids=[320]))),
    ],
)
async def test_a_bad_part_ends_its_session_by_name(
    llm: AsyncLLM, client: FakeClient, talker: Talker, field: str, part: Any, later: bool
) -> None:
    task = listen(llm, talker)
    if later:
        talker.say("good")
        client.put(row(await sent(client, 1), ids("a"), finish_reason=LENGTH))
    talker.said.put_nowait(part)
    with pytest.raises(VLLMValidationError) as caught:
        await task
    assert caught.value.parameter == field
    await until(lambda: talker.closed and client.aborts)
    assert len(client.added) == later


async def test_all_parts_have_one_cache_salt(llm: AsyncLLM, client: FakeClient, talker: Talker) -> None:
    task = listen(llm, talker)
    for number, salt in enumerate(("pepper", None, "pepper"), 1):
        talker.say({"prompt": "x", "cache_salt": salt})
        client.put(row(await sent(client, number), ids("a"), finish_reason=LENGTH))
    talker.say({"prompt": "x", "cache_salt": "sugar"})
    with pytest.raises(VLLMValidationError, match="cache_salt must be that of the session's first part; got 'sugar'"):
        await task
    await until(lambda: client.aborts)


async def test_a_session_is_admitted_once(make: Callable[..., AsyncLLM], client: FakeClient, talker: Talker) -> None:
    llm = make(max_num_queued_reqs=1)
    task = listen(llm, talker)
    await until(llm.get_num_unfinished_requests)
    with pytest.raises(QueueOverflowError):
        await collect(llm.generate(Talker().parts(), params(), "more"))
    for number in (1, 2):
        talker.say("x")
        client.put(row(await sent(client, number), ids("a"), finish_reason=LENGTH))
    talker.said.put_nowait(None)
    assert joined(await task)[0] == "aa"
    await until(lambda: client.aborts)


# ---- other ends ------------------------------------------------------------------------------------------------------------

Moment = str
MOMENTS = ["before the first part", "running", "between parts", "ended input"]


async def reach(moment: Moment, llm: AsyncLLM, client: FakeClient, talker: Talker) -> str:
    """Bring a session there; its id."""
    if moment == "before the first part":
        await until(lambda: talker.asked)
        return next(iter(llm.output_processor.request_states))
    talker.say("x")
    session = await sent(client, 1)
    if moment == "between parts":
        client.put(row(session, ids("a"), finish_reason=LENGTH))
        await until(lambda: llm.output_processor.request_states[session].detokenizer.num_tokens)
    elif moment == "ended input":
        talker.said.put_nowait(None)
        await until(lambda: talker.closed)
    await until(lambda: talker.asked == 2)
    return session


@pytest.mark.parametrize("moment", MOMENTS[:3])
async def test_the_generators_own_error_reaches_the_caller(
    llm: AsyncLLM, client: FakeClient, talker: Talker, moment: Moment
) -> None:
    task = listen(llm, talker)
    session = await reach(moment, llm, client, talker)
    error = ZeroDivisionError("mine alone")
    talker.said.put_nowait(error)
    with pytest.raises(ZeroDivisionError, match="mine alone") as caught:
        await task
    assert caught.value is error
    await settled(talker, client, session)


async def test_a_generator_that_cancels_itself_leaves_nobody_waiting(llm: AsyncLLM, client: FakeClient, talker: Talker) -> None:
    task = listen(llm, talker)
    session = await reach("running", llm, client, talker)
    talker.said.put_nowait(asyncio.CancelledError())
    with pytest.raises(EngineGenerateError, match="was cancelled"):
        await task
    await settled(talker, client, session)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_abort_from_elsewhere(llm: AsyncLLM, client: FakeClient, talker: Talker, moment: Moment) -> None:
    task = listen(llm, talker)
    session = await reach(moment, llm, client, talker)
    await llm.abort("mine")
    outputs = await task
    assert (outputs[-1].finished, outputs[-1].outputs[0].finish_reason) == (True, "abort")
    await settled(talker, client, session)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_caller_leaves(llm: AsyncLLM, client: FakeClient, talker: Talker, moment: Moment, cancelled: bool) -> None:
    stream = llm.generate(talker.parts(), params(), "mine")
    task = asyncio.create_task(collect(stream))
    session = await reach(moment, llm, client, talker)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stream.aclose()
    await settled(talker, client, session)
    assert client.aborts[0][1] == "client_disconnect"


@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_engine_dies(llm: AsyncLLM, client: FakeClient, talker: Talker, moment: Moment) -> None:
    task = listen(llm, talker)
    await reach(moment, llm, client, talker)
    client.fail(EngineDeadError("engine core 0 was killed"))
    with pytest.raises(EngineDeadError, match="was killed"):
        await task
    await until(lambda: talker.closed)
    assert client.aborts == []


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
async def test_the_engine_core_ends_it(
    llm: AsyncLLM, client: FakeClient, talker: Talker, moment: Moment, reason: FinishReason
) -> None:
    task = listen(llm, talker)
    session = await reach(moment, llm, client, talker)
    client.put(row(session, [], finish_reason=reason, error="bad luck"))
    outputs = await task
    assert (outputs[-1].finished, outputs[-1].outputs[0].finish_reason) == (True, str(reason))
    await settled(talker, client, session)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_shutdown(llm: AsyncLLM, client: FakeClient, talker: Talker, moment: Moment) -> None:
    task = listen(llm, talker)
    await reach(moment, llm, client, talker)
    llm.shutdown()
    with pytest.raises(EngineDeadError, match="was shut down"):
        await task
    await until(lambda: talker.closed)


async def test_a_send_that_fails(llm: AsyncLLM, client: FakeClient, talker: Talker) -> None:
    client.send_error = TypeError("cannot be encoded")
    task = listen(llm, talker)
    talker.say("x")
    with pytest.raises(EngineGenerateError, match="request 'mine' failed: cannot be encoded"):
        await task
    await until(lambda: talker.closed and client.aborts)


async def test_who_is_slow_to_clean_up_hears_of_the_end_before(llm: AsyncLLM, client: FakeClient) -> None:
    let_go, closed = asyncio.Event(), []

    async def slow() -> Parts:
        try:
            yield StreamingInput("")
        finally:
            await let_go.wait()
            closed.append(True)

    with pytest.raises(VLLMValidationError, match="at least one token"):
        await collect(llm.generate(slow(), params(), "mine"))
    assert (len(client.aborts), closed) == (1, [])
    let_go.set()
    await until(lambda: closed)


async def test_a_generator_that_goes_on_when_cancelled_is_not_heard(llm: AsyncLLM, client: FakeClient) -> None:
    closed = []

    async def stubborn() -> Parts:
        yield StreamingInput("x")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield StreamingInput("and another thing")
        finally:
            closed.append(True)

    task = asyncio.create_task(collect(llm.generate(stubborn(), params(), "mine")))
    await sent(client, 1)
    await llm.abort("mine")
    await task
    await until(lambda: closed)
    assert len(client.added) == 1


# ---- real engine cores -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["sync", "async"])
async def toy(tiny_model_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[AsyncLLM]:
    options = {"async_scheduling": request.param, "block_size": 4, "max_num_seqs": 6, "num_gpu_blocks_override": 60}
    llm = AsyncLLM.from_engine_args(toy_args(tiny_model_path, max_model_len=200, max_num_batched_tokens=24, **options))
    yield llm
    assert is_empty(llm)
    await llm.pause_generation()
    await llm.release_kv_cache_memory()  # which an engine that holds any request refuses
    llm.shutdown()


async def converse(llm: AsyncLLM, name: str, number: int) -> None:
    """A session whose every answer must be that of a plain request over the same tokens."""
    asked: list[SamplingParams] = []
    outputs: list[RequestOutput] = []

    async def parts() -> Parts:
        for index in range(number):
            stop = list(range(32, 64)) if index % 3 == 1 else []
            asked.append(params(max_tokens=1 + 6 * index, seed=index, stop_token_ids=stop))
            if index % 2:  # else it is known before the answer to the one before
                await until(lambda: sum(o.outputs[0].finish_reason is not None for o in outputs) == len(asked) - 1)
            yield StreamingInput(list(f"{name} says {index}".encode()), asked[-1])

    async for output in llm.generate(parts(), params(), name):
        outputs.append(output)  # noqa: PERF401  (parts() reads along)
    told: list[int] = []
    answers: list[int] = []
    for index, wanted in enumerate(asked):
        told += f"{name} says {index}".encode()
        answer = expected_tokens(told, wanted.max_tokens or 0, wanted)
        stopped = next((i for i, token in enumerate(answer, 1) if token in (wanted.stop_token_ids or ())), None)
        answer = answer[:stopped]
        answers += answer
        told += answer[:-1]
    assert [token for output in outputs for token in output.outputs[0].token_ids] == answers


async def test_sessions_beside_each_other_and_beside_plain_requests(toy: AsyncLLM) -> None:
    plain = [collect(toy.generate(ids(f"plain {i}") * 4, params(max_tokens=30), f"p{i}")) for i in range(6)]
    sessions = [converse(toy, f"s{i}", 1 + i % 4) for i in range(8)]
    answers, *_ = await asyncio.gather(asyncio.gather(*plain), *sessions)
    for i, outputs in enumerate(answers):
        assert joined(outputs)[1] == expected_tokens(ids(f"plain {i}") * 4, 30)


async def test_a_pause_that_aborts_reaches_a_session_between_parts(toy: AsyncLLM) -> None:
    talker = Talker()
    stream = toy.generate(talker.parts(), params(max_tokens=1), "mine")
    talker.say("x")
    assert (await anext(stream)).outputs[0].finish_reason == "length"
    await toy.pause_generation(mode="abort")
    talker.say("late")  # may cross the news
    (last,) = [output async for output in stream if output.finished]
    assert last.outputs[0].finish_reason == "abort"
    await toy.resume_generation()


async def test_what_a_session_was_told_outlives_a_sleep(toy: AsyncLLM) -> None:
    talker = Talker()
    stream = toy.generate(talker.parts(), params(max_tokens=1), "mine")
    told: list[int] = []
    for text in ("before. ", "after a reset. ", "after a sleep."):
        talker.say(text)
        told += ids(text)
        output = await anext(stream)
        assert output.outputs[0].token_ids == expected_tokens(told, 1)
        if text == "before. ":
            assert await toy.reset_prefix_cache()
        else:
            await toy.sleep(1, mode="keep")
            assert await toy.wake_up()
    talker.said.put_nowait(None)
    assert [output async for output in stream] == []
