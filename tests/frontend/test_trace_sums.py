"""However rows, takes and aborts fall, the records tell what each caller got: a real front end, schedules made by chance."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.frontend import helpers
from tests.frontend.fake_client import FakeClient
from tests.frontend.helpers import CUMULATIVE, DELTA, FINAL_ONLY, row, word_tokenizer
from vllm_lite.frontend.collector import RequestOutputCollector
from vllm_lite.frontend.core_client import Posted
from vllm_lite.frontend.output_handler import CHUNK_SIZE, OutputHandler, send_abort
from vllm_lite.frontend.output_processor import OutputProcessor
from vllm_lite.frontend.parallel_sampling import children_of
from vllm_lite.frontend.stamps import Stamps
from vllm_lite.frontend.tokenizer import Tokenizer
from vllm_lite.outputs import RequestOutput
from vllm_lite.tracing.check import counts, judge
from vllm_lite.tracing.journey import Run, load_run
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.tracing.run_dir import create_run_dir
from vllm_lite.wire.messages import FinishReason

LETTERS = "abcxyz"


class Caller:
    """One request and what came to its caller; `slow` ones look now and then, the others wait for each letter."""

    def __init__(self, name: str, rng: random.Random, front: FrontEnd) -> None:
        self.kind = rng.choice((DELTA, CUMULATIVE, FINAL_ONLY))
        stop, interval = rng.choice((None, ["b"])), rng.choice((None, 2, 3))
        asked = helpers.request(name, output_kind=self.kind, n=rng.choice((1, 1, 2, 3)), stop=stop, stream_interval=interval)
        trace = front.stamps.accept(name, asked.params, None)
        assert trace is not None
        front.stamps.tokenise(trace, now_ns(), 3)
        self.name, self.takes, self.tokens, self.over = name, 0, Counter[int](), False
        self.mailbox = RequestOutputCollector(self.kind, name, trace, front.stamps)
        children, parent = children_of(asked)
        for index, child in enumerate(children):
            front.processor.add_request(child, "prompt", self.mailbox, parent, index)
            front.stamps.post(trace, child.request_id, t0=now_ns(), span_id="", sample=index, posted=Posted(0, 10))
            front.rows_left[child.request_id] = rng.randint(1, 12)
        self.slow = rng.random() < 0.4
        self.reader = None if self.slow else asyncio.create_task(self.read(rng))

    def look(self) -> None:
        """Take what lies there."""
        output = None if self.over else self.mailbox.get_nowait()
        if output is not None:
            self.note(output)

    async def read(self, rng: random.Random) -> None:
        while not self.over:
            for _ in range(rng.choice((0, 0, 1, 3, 6))):
                await asyncio.sleep(0)
            self.note(await self.mailbox.get())

    def note(self, output: object) -> None:
        assert isinstance(output, RequestOutput)
        self.takes, self.over = self.takes + 1, output.finished
        for part in output.outputs:
            had = self.tokens[part.index] if self.kind is DELTA else 0
            self.tokens[part.index] = had + len(part.token_ids)

    def leave(self) -> None:
        self.over = True
        if self.reader is not None:
            self.reader.cancel()


class FrontEnd:
    """All of it but AsyncLLM. The engine core's rows are made by chance; it goes on a while with what was given up."""

    def __init__(self, run_dir: Path, tokenizer: Tokenizer) -> None:
        self.stamps, self.client = Stamps(run_dir, "m"), FakeClient()
        self.processor = OutputProcessor(tokenizer)
        self.handler = OutputHandler(self.client, self.processor, self.stamps)
        self.rows_left: dict[str, int] = {}  # of each sample
        self.callers: list[Caller] = []

    async def play(self, rng: random.Random) -> None:
        task = self.handler.start()
        for _ in range(rng.randint(5, 40)):
            what = rng.random()
            if not self.callers or (what < 0.2 and len(self.callers) < 8):
                self.callers.append(Caller(f"r{len(self.callers)}", rng, self))
            elif what < 0.8:
                self.step(rng, 0.7)
            else:
                await self.give_up(rng.choice(self.callers), rng)
            for caller in self.callers:
                if caller.slow and rng.random() < 0.3:
                    caller.look()
            for _ in range(rng.choice((0, 1, 2, 5, 9))):
                await asyncio.sleep(0)
        while self.rows_left:
            self.step(rng, 1.0)
        for _ in range(100):
            await asyncio.sleep(0)
        if rng.random() < 0.7:
            for caller in self.callers:
                caller.look()
        self.stamps.shutdown()
        for done in (task, *filter(None, (caller.reader for caller in self.callers))):
            done.cancel()

    def step(self, rng: random.Random, share: float) -> None:
        rows = []
        for internal_id in [name for name in self.rows_left if rng.random() < share]:
            self.rows_left[internal_id] -= 1
            end = None
            if not self.rows_left[internal_id]:
                del self.rows_left[internal_id]
                end = FinishReason.LENGTH
            tokens = [ord(rng.choice(LETTERS)) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
            rows.append(row(internal_id, tokens, finish_reason=end))
        rng.shuffle(rows)
        if rows:
            self.client.put(*rows)

    async def give_up(self, caller: Caller, rng: random.Random) -> None:
        reason = rng.choice(("api", "client_disconnect"))
        if reason == "client_disconnect":
            caller.leave()
        await send_abort(self.client, self.processor.abort_requests([caller.name], internal=True), reason, self.stamps)
        if reason == "client_disconnect":
            caller.mailbox.close()


def failures(run: Run) -> list[str]:
    rules = (counts.one_close(run), counts.letters(run), counts.tokens(run, None), counts.bags(run))
    return [failure for rule in rules for failure in judge("", rule).failures]


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("seed", range(60))
async def test_the_records_tell_what_each_caller_got(
    seed: int, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setenv(CHUNK_SIZE, str(rng.choice((1, 2, 3, 128))))
    run_dir = create_run_dir(level, str(tmp_path / "run"))
    front = FrontEnd(run_dir, word_tokenizer(tmp_path / "words", list(LETTERS))[0])
    await front.play(rng)
    run = load_run(run_dir)
    assert failures(run) == []
    assert (run.torn, run.unknown, run.unclaimed) == (0, 0, 0)
    requests = {request.accept.external_id: request for request in run.requests}
    told = {name: (len(request.takes), sum(take.tokens for take in request.takes)) for name, request in requests.items()}
    assert told == {caller.name: (caller.takes, caller.tokens.total()) for caller in front.callers}
    for request in run.requests:
        since = zip([request.accept.t, *request.t_takes], request.t_takes, request.waits, strict=False)
        assert all(0 <= wait <= t - before for before, t, wait in since)
