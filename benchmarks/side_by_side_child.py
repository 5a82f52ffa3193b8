"""One engine answers every case, once. Started by side_by_side.py.

    python benchmarks/side_by_side_child.py vllm_lite|vllm MODEL_FOLDER DTYPE TEXT

Prints one JSON list: of each case whose name holds TEXT its name, how its answers are to be compared, and the answers. The same
code drives both engines, since their names are the same.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import psutil

DOT, COMMA, THE, IS = 30, 28, 260, 314  # token ids of ".", ",", " the" and " is" in SmolLM2's vocabulary
MAX_MODEL_LEN, BLOCK_SIZE = 512, 32
TEXTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "Water boils at",
    "def fibonacci(n):\n",
    "The three primary colours are",
    "Q: What is 12 times 12?\nA:",
    "My favourite season is autumn because",
    "The quick brown fox",
    "Naïve café, 日本語 and 😀:",
    "1, 2, 3, 4, 5,",
]
CHATS = [
    f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    for question in ("Say hello in one word.", "Which is larger, the sun or the moon?")
]
PROMPTS = TEXTS + CHATS
FEW = [TEXTS[0], TEXTS[4], CHATS[1]]
LONG = list(range(1000, 1100))
CONTROL = [1, 2, 3]  # no text: the frailest in bfloat16
ITALY = [504, 3995, 2240, 282, 7158, 314]  # "The largest city of Italy is"


@dataclass
class Case:
    """Prompts that are answered at once (`in_turn`: one by one), all with `params`.

    `how`: "tokens" compares ids, texts and reasons, and log probabilities where `logprobs` says so; "chunks" every output of
    the stream as well; "lengths" what random numbers leave alone; "prefix" that one answer is the other's beginning; "errors"
    the kind of error.
    """

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    prompts: list[Any] = field(default_factory=lambda: FEW)
    how: str = "tokens"
    kind: str = "FINAL_ONLY"
    in_turn: bool = False
    logprobs: bool = False  # whether their values are part of the case; they are always there, to explain a near tie
    abort_after: int | None = None
    variants: list[dict[str, Any]] = field(default_factory=lambda: [{}])  # each prompt with each of these as well


GREEDY = {"temperature": 0.0, "max_tokens": 24}
REFUSED: list[dict[str, Any]] = [
    {"temperature": -1.0},
    {"top_p": 0.0},
    {"top_k": -2},
    {"min_p": 1.5},
    {"n": 0},
    {"n": 2, "temperature": 0.0},
    {"max_tokens": 0},
    {"min_tokens": 99, "max_tokens": 9},
    {"presence_penalty": 3.0},
    {"repetition_penalty": 0.0},
    {"logprobs": 21},
    {"prompt_logprobs": -2},
    {"stop": [""]},
    {"stop": ["x"], "detokenize": False},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [10**6]},
    {"logit_bias": {10**6: 1.0}},
    {"stream_interval": 0},
]
CASES = [
    Case("greedy, 48 tokens", {"max_tokens": 48}, PROMPTS),
    Case("greedy, token ids in", {}, [{"prompt_token_ids": ids} for ids in (LONG, ITALY, CONTROL)]),
    Case("stop strings", {"stop": [".", "\n"]}, PROMPTS),
    Case("stop strings, included", {"stop": [".", "\n"], "include_stop_str_in_output": True}, PROMPTS),
    Case("stop string over several tokens", {"stop": ["the capital", "colours are", " is larger"], "max_tokens": 48}),
    Case("stop_token_ids", {"stop_token_ids": [DOT, COMMA]}, PROMPTS),
    Case("stop_token_ids, included in text", {"stop_token_ids": [DOT, COMMA], "include_stop_str_in_output": True}),
    Case("min_tokens and stop_token_ids", {"stop_token_ids": [DOT, COMMA], "min_tokens": 12}, PROMPTS),
    Case("min_tokens and stop strings", {"stop": [".", "\n"], "min_tokens": 12}, PROMPTS),
    Case("min_tokens and end of sequence", {"min_tokens": 40, "max_tokens": 48}, CHATS),
    Case("ignore_eos", {"ignore_eos": True, "max_tokens": 48}, CHATS),
    Case("special tokens kept", {"skip_special_tokens": False, "max_tokens": 48}, CHATS),
    Case("special tokens kept, ignore_eos", {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 48}, CHATS),
    Case("no detokenization", {"detokenize": False}),
    Case("logprobs 5", {}, PROMPTS, logprobs=True),
    Case("logprobs 0", {"logprobs": 0, "max_tokens": 4}, logprobs=True),
    Case("prompt_logprobs 5", {"prompt_logprobs": 5, "max_tokens": 2}, PROMPTS, logprobs=True),
    Case("prompt_logprobs 0", {"prompt_logprobs": 0, "max_tokens": 2}, logprobs=True),
    Case("penalties", {"presence_penalty": 0.6, "frequency_penalty": 0.4, "max_tokens": 48}),
    Case("repetition_penalty", {"repetition_penalty": 1.3, "max_tokens": 48}),
    Case("logit_bias", {"logit_bias": {DOT: -100.0, THE: 3.0}}),
    Case("allowed_token_ids", {"allowed_token_ids": [DOT, COMMA, THE, IS, *range(300, 400)]}),
    Case("bad_words", {"bad_words": ["the", "Paris", "is"]}),
    Case("sampled down to one, top_k", {"temperature": 1.0, "top_k": 1, "seed": 1}),
    Case("sampled down to one, top_p", {"temperature": 1.0, "top_p": 1e-6, "seed": 1}),
    Case("sampled down to one, min_p", {"temperature": 1.0, "min_p": 1.0, "seed": 1}),
    Case("sampled, seed, n=2", {"temperature": 1.0, "seed": 7, "n": 2, "ignore_eos": True}, how="lengths"),
    Case("sampled, top_k 5, seed, n=2", {"temperature": 1.0, "top_k": 5, "seed": 7, "n": 2, "ignore_eos": True}, how="lengths"),
    Case("up to max_model_len", {"max_tokens": None}, [{"prompt_token_ids": [1000] * (MAX_MODEL_LEN - 7)}]),
    Case("max_tokens beyond max_model_len", {"ignore_eos": True}, [{"prompt_token_ids": [1000] * (MAX_MODEL_LEN - 7)}]),
    Case("DELTA", {}, FEW, "chunks", "DELTA", in_turn=True),
    Case("DELTA, characters of several tokens", {}, [TEXTS[8], "😀😃😄😁😆"], "chunks", "DELTA", in_turn=True),
    Case("DELTA, stop strings", {"stop": ["Paris.", "largest", "blue"]}, FEW, "chunks", "DELTA", in_turn=True),
    Case("DELTA, stream_interval 5", {"stream_interval": 5}, FEW, "chunks", "DELTA", in_turn=True),
    Case("CUMULATIVE", {"max_tokens": 12}, FEW, "chunks", "CUMULATIVE", in_turn=True),
    Case("FINAL_ONLY", {"max_tokens": 12}, FEW, "chunks", "FINAL_ONLY", in_turn=True),
    Case("abort after 5 tokens", {"max_tokens": 400, "ignore_eos": True}, FEW, "prefix", "DELTA", in_turn=True, abort_after=5),
    Case(
        "prefix cache: again, longer, salted",
        {"max_tokens": 4},
        [
            {"prompt_token_ids": [5, *LONG]},
            {"prompt_token_ids": [5, *LONG]},
            {"prompt_token_ids": [5, *LONG, *LONG]},
            {"prompt_token_ids": [5, *LONG], "cache_salt": "salt"},
        ],
        in_turn=True,
    ),
    Case("prefix cache: a prompt of whole blocks", {"max_tokens": 4}, [{"prompt_token_ids": [6] * 64}] * 2, in_turn=True),
    Case(
        "refused: prompts that are empty (text, ids), as long as max_model_len, beyond the vocabulary",
        {},
        ["", *({"prompt_token_ids": ids} for ids in ([], [1000] * MAX_MODEL_LEN, [10**6]))],
        "errors",
    ),
    Case(
        "refused: " + ", ".join(" and ".join(f"{key}={value!r}" for key, value in each.items()) for each in REFUSED),
        {},
        FEW[:1],
        "errors",
        variants=REFUSED,
    ),
]


def engine_of(package: str, model: str, dtype: str) -> tuple[Any, Any, Any]:
    """The engine, and the classes of its parameters and output kinds."""
    if package == "vllm":
        from vllm import SamplingParams
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM
    else:
        from vllm_lite import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams
    args = AsyncEngineArgs(
        model=model,
        dtype=dtype,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 29,
    )
    return AsyncLLM.from_engine_args(args), SamplingParams, RequestOutputKind


class Driver:
    """Runs cases on one engine."""

    def __init__(self, package: str, model: str, dtype: str) -> None:
        self._engine, self._params, self._kinds = engine_of(package, model, dtype)

    async def run(self, number: int, case: Case) -> dict[str, Any]:
        """The case's answers, in the order of its prompts."""
        pairs = itertools.product(case.prompts, case.variants)
        calls = [self._answer(f"{number}-{at}", prompt, case, extra) for at, (prompt, extra) in enumerate(pairs)]
        answers = [await call for call in calls] if case.in_turn else await asyncio.gather(*calls)
        return {"name": case.name, "how": case.how, "logprobs": case.logprobs, "answers": answers}

    async def _answer(self, name: str, prompt: Any, case: Case, extra: dict[str, Any]) -> dict[str, Any]:
        chunks, finished, logprobs, last = [], [], [], None
        try:
            params = self._params(**GREEDY | {"logprobs": 5} | case.params | extra, output_kind=getattr(self._kinds, case.kind))
            async for last in self._read(name, prompt, params, case.abort_after):
                chunks.append([_chunk(each) for each in last.outputs])  # at once: vLLM's cumulative lists go on growing
                finished.append(last.finished)
                new = [_candidates(each) for each in last.outputs[0].logprobs or ()]
                logprobs = new if case.kind == "CUMULATIVE" else logprobs + new
        except Exception as error:
            return {"error": [each.__name__ for each in type(error).__mro__], "message": str(error)}
        assert last is not None
        return {
            "prompt": last.prompt,
            "prompt_token_ids": list(last.prompt_token_ids),
            "num_cached_tokens": last.num_cached_tokens,
            "prompt_logprobs": last.prompt_logprobs and [_candidates(each) for each in last.prompt_logprobs],
            "chunks": chunks,
            "finished": finished,
            "ends": [_end(chunks, index, case.kind) for index in range(params.n)],
            "logprobs": logprobs,
        }

    async def _read(self, name: str, prompt: Any, params: Any, abort_after: int | None) -> AsyncIterator[Any]:
        tokens = 0
        async for output in self._engine.generate(prompt, params, name):
            yield output
            tokens += len(output.outputs[0].token_ids)
            if abort_after is not None and tokens >= abort_after:
                abort_after = None
                await self._engine.abort(name)


def _chunk(output: Any) -> dict[str, Any]:
    return {
        "index": output.index,
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }


def _end(chunks: list[list[dict[str, Any]]], index: int, kind: str) -> dict[str, Any]:
    """What the caller has of answer `index` when it has ended."""
    own = [each for chunk in chunks for each in chunk if each["index"] == index]
    if kind != "DELTA":
        return own[-1]
    return own[-1] | {
        "text": "".join(each["text"] for each in own),
        "token_ids": [token for each in own for token in each["token_ids"]],
    }


def _candidates(found: Any) -> Any:
    """One position's candidates by token id; None for a prompt's first token."""
    return found and {token: [each.logprob, each.rank, each.decoded_token] for token, each in found.items()}


async def main(package: str, model: str, dtype: str, text: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print to standard output, too
    driver = Driver(package, model, dtype)
    found = [await driver.run(number, case) for number, case in enumerate(CASES) if text in case.name]
    print(json.dumps(found), file=answers, flush=True)
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os._exit(0)  # nobody waits for a slow farewell


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
