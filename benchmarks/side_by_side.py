"""vllm-lite and vLLM answer the same prompts with the same parameters: where do they differ?

    python benchmarks/side_by_side.py --vllm-python PYTHON [--dtypes float32 bfloat16] [--cases TEXT] [--model FOLDER]

SmolLM2-135M-Instruct, each engine in a process of its own, one after the other; what the cases are stands in
side_by_side_child.py. Prints a Markdown table for each dtype: answers whose token ids are equal, of how many; among those,
equal texts and equal finish and stop reasons.
Greedy answers may part where two tokens are about equally likely (CLOSE); the note says where and how near. In bfloat16
that is often, and neither engine is right: so each one's log probabilities are held against its own in float32, and ours must
not be further off. Random numbers are each engine's own, so sampled answers are compared by length, reason and order alone. A
stream's text may come earlier than vLLM's, which always holds back as many characters as the longest stop string has.
Ends with exit code 1 where anything else differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_lite.config.model_files import DEFAULT_MODEL, resolve_model

CHILD = Path(__file__).parent / "side_by_side_child.py"
CLOSE = {"float32": 1e-3, "bfloat16": 0.5}  # in log probability; this model's logits lie where bfloat16 has steps of 0.125
DISTANCE_BAR = 1.5  # bfloat16's from float32, ours over theirs
Answer = dict[str, Any]


@dataclass
class Count:
    """How many of those that could be compared are equal."""

    equal: int = 0
    of: int = 0

    def add(self, equal: bool) -> bool:
        self.equal, self.of = self.equal + equal, self.of + 1
        return equal

    def __str__(self) -> str:
        return f"{self.equal}/{self.of}" if self.of else ""


@dataclass
class Row:
    """One case, compared. `unexplained` holds what is nobody's right to differ in."""

    name: str
    tokens: Count = field(default_factory=Count)
    text: Count = field(default_factory=Count)
    reason: Count = field(default_factory=Count)
    notes: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    parted: list[int] = field(default_factory=list)  # the tokens at which near ties made answers part
    widest_tie: float = 0.0
    worst_logprob: float | None = None

    def __str__(self) -> str:
        notes = [*self.notes, *(f"**differs**: {each}" for each in self.unexplained)]
        if self.parted:
            notes.append(f"near ties at tokens {', '.join(map(str, self.parted))}, {self.widest_tie:.2g} at most")
        if self.worst_logprob is not None:
            notes.append(f"log probabilities within {self.worst_logprob:.1g}")
        return f"| {self.name} | {self.tokens} | {self.text} | {self.reason} | {'; '.join(dict.fromkeys(notes))} |"


def compare(ours: dict[str, Any], theirs: dict[str, Any], dtype: str) -> Row:
    """One case of both engines."""
    row = Row(ours["name"])
    for at, (own, other) in enumerate(zip(ours["answers"], theirs["answers"], strict=True)):
        if "error" in own or "error" in other:
            _compare_errors(row, own, other)
            continue
        _compare_inputs(row, at, own, other)
        if ours["how"] == "lengths":
            _compare_lengths(row, own, other)
        elif ours["how"] == "prefix":
            _compare_prefixes(row, at, own, other, CLOSE[dtype])
        else:
            _compare_answers(row, at, own, other, CLOSE[dtype], chunks=ours["how"] == "chunks")
        if ours["logprobs"]:
            _compare_logprobs(row, at, own, other, dtype)
    return row


def _compare_errors(row: Row, own: Answer, other: Answer) -> None:
    kinds = [each["error"][0] if "error" in each else "an answer" for each in (own, other)]
    if row.reason.add(kinds[0] == kinds[1]):
        row.notes.append(kinds[0])
    else:
        row.unexplained.append(f"{kinds[0]} against {kinds[1]}")


def _compare_inputs(row: Row, at: int, own: Answer, other: Answer) -> None:
    for name in ("prompt", "prompt_token_ids", "num_cached_tokens"):
        if own[name] != other[name]:
            row.unexplained.append(f"prompt {at}: {name} {own[name]!r:.60} against {other[name]!r:.60}")
    if own["num_cached_tokens"]:
        row.notes.append(f"{own['num_cached_tokens']} tokens of prompt {at} cached")


def _compare_answers(row: Row, at: int, own: Answer, other: Answer, close: float, *, chunks: bool) -> None:
    (mine,), (yours,) = own["ends"], other["ends"]
    if not row.tokens.add(mine["token_ids"] == yours["token_ids"]):
        _explain(row, at, own, other, close)
        return
    if not row.text.add(mine["text"] == yours["text"]):
        row.unexplained.append(f"prompt {at}: text {mine['text'][-40:]!r} against {yours['text'][-40:]!r}")
    _compare_reasons(row, mine, yours)
    if chunks and (own["chunks"] != other["chunks"] or own["finished"] != other["finished"]):
        _compare_streams(row, at, own, other)


def _compare_streams(row: Row, at: int, own: Answer, other: Answer) -> None:
    """Outputs that are not the same: only text may be elsewhere, and none of it later than theirs."""
    mine, yours = ([each for chunk in answer["chunks"] for each in chunk] for answer in (own, other))
    alike = [[each | {"text": ""} for each in outputs] for outputs in (mine, yours)]
    ahead = [
        texts[0].startswith(texts[1])
        for texts in zip(*(itertools.accumulate(each["text"] for each in outputs) for outputs in (mine, yours)), strict=False)
    ]
    if alike[0] == alike[1] and all(ahead):
        row.notes.append("the same tokens in each output, text earlier")
    else:
        row.unexplained.append(f"prompt {at}: the stream's outputs: {_shape(mine)} against {_shape(yours)}")


def _compare_reasons(row: Row, mine: Answer, yours: Answer) -> None:
    reasons = [(each["finish_reason"], each["stop_reason"]) for each in (mine, yours)]
    if not row.reason.add(reasons[0] == reasons[1]):
        row.unexplained.append(f"{reasons[0]} against {reasons[1]}")


def _compare_lengths(row: Row, own: Answer, other: Answer) -> None:
    """Random numbers differ: how many answers, how long, why they ended."""
    for mine, yours in zip(own["ends"], other["ends"], strict=True):
        if len(mine["token_ids"]) != len(yours["token_ids"]) or mine["index"] != yours["index"]:
            row.unexplained.append(f"{len(mine['token_ids'])} tokens against {len(yours['token_ids'])}")
        _compare_reasons(row, mine, yours)
    row.notes.append("random numbers differ: only lengths and reasons compared")


def _compare_prefixes(row: Row, at: int, own: Answer, other: Answer, close: float) -> None:
    (mine,), (yours,) = own["ends"], other["ends"]
    both = min(len(mine["token_ids"]), len(yours["token_ids"]))
    if not row.tokens.add(mine["token_ids"][:both] == yours["token_ids"][:both]):
        _explain(row, at, own, other, close)
    _compare_reasons(row, mine, yours)
    row.notes.append("compared as far as both got")


def _explain(row: Row, at: int, own: Answer, other: Answer, close: float) -> None:
    """Why two greedy answers part: a near tie, or something that needs to be found."""
    mine, yours = own["ends"][0]["token_ids"], other["ends"][0]["token_ids"]
    where = next((i for i, pair in enumerate(zip(mine, yours, strict=False)) if pair[0] != pair[1]), None)
    if where is None:
        row.unexplained.append(f"prompt {at}: {len(mine)} tokens against {len(yours)}")
        return
    gap = max(_gap(answer["logprobs"][where], mine[where], yours[where]) for answer in (own, other))
    if gap <= close:
        row.parted.append(where)
        row.widest_tie = max(gap, row.widest_tie)
    else:
        row.unexplained.append(f"prompt {at} parts at token {where}, where the two are {gap:.2g} apart")


def _gap(candidates: dict[str, list[Any]], *tokens: int) -> float:
    """How far two tokens are apart; one that is not among the candidates is no likelier than the last of them."""
    likely = [found[0] for found in candidates.values()]
    one, other = (candidates[str(token)][0] if str(token) in candidates else min(likely) for token in tokens)
    return abs(one - other) if len(likely) > 1 else float("inf")


def _compare_logprobs(row: Row, at: int, own: Answer, other: Answer, dtype: str) -> None:
    spare = int(dtype == "bfloat16")  # a prompt's token may just be, or not be, one of the likeliest
    for what, mine, yours in _positions(own, other):
        if mine is None or yours is None or abs(len(mine) - len(yours)) > spare:
            if mine != yours:
                row.unexplained.append(f"prompt {at}, {what}: {mine and len(mine)} candidates against {yours and len(yours)}")
            continue
        likeliest = [sorted((found[0] for found in each.values()), reverse=True) for each in (mine, yours)]
        worst = max(abs(one - two) for one, two in zip(*likeliest, strict=False))
        row.worst_logprob = max(worst, row.worst_logprob or 0.0)
        if worst > CLOSE[dtype]:
            row.unexplained.append(f"prompt {at}, {what}: log probabilities {worst:.3g} apart")
        for token in mine.keys() & yours.keys():
            if mine[token][2] != yours[token][2]:
                row.unexplained.append(f"prompt {at}, {what}: token {token} is {mine[token][2]!r} against {yours[token][2]!r}")


def _positions(own: Answer, other: Answer) -> Iterator[tuple[str, Any, Any]]:
    """Both engines' candidates wherever they had seen the same tokens before."""
    for at, pair in enumerate(zip(own["prompt_logprobs"] or (), other["prompt_logprobs"] or (), strict=True)):
        yield f"prompt token {at}", *pair
    mine, yours = own["ends"][0]["token_ids"], other["ends"][0]["token_ids"]
    for at, pair in enumerate(zip(own["logprobs"], other["logprobs"], strict=False)):
        yield f"token {at}", *pair
        if mine[at] != yours[at]:
            return


def _shape(outputs: list[Answer]) -> str:
    """A stream as one line: each output's number of tokens and text."""
    return " ".join(f"{len(each['token_ids'])}{each['text']!r}" for each in outputs)[:200]


def distance(cases: list[dict[str, Any]], exact: list[dict[str, Any]]) -> float:
    """The mean difference of prompt tokens' own log probabilities between two runs of an engine."""
    differences = [
        abs(found[str(token)][0] - wanted[str(token)][0])
        for case, other in zip(cases, exact, strict=True)
        for one, two in zip(case["answers"], other["answers"], strict=True)
        if one.get("prompt_logprobs")
        for token, found, wanted in zip(one["prompt_token_ids"], one["prompt_logprobs"], two["prompt_logprobs"], strict=True)
        if found is not None
    ]
    return sum(differences) / len(differences)


def run(python: str, package: str, model: Path, dtype: str, cases: str) -> list[dict[str, Any]]:
    """One engine's answers to all cases whose name holds `cases`."""
    command = [python, str(CHILD), package, str(model), dtype, cases]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # on a busy machine several wait for each other most of the time
    done = subprocess.run(command, env=one_thread, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{package} ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> int:
    """Run both engines and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", required=True, help="the Python of an environment that has vLLM")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=list(CLOSE))
    parser.add_argument("--cases", default="", help="only those whose name holds this text")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    options = parser.parse_args()
    model = resolve_model(options.model)
    unexplained, runs = 0, {}
    print(f"{options.model}, {platform.machine()}, Python {platform.python_version()}")
    for dtype in options.dtypes:
        ours = run(sys.executable, "vllm_lite", model, dtype, options.cases)
        theirs = run(options.vllm_python, "vllm", model, dtype, options.cases)
        rows = [compare(*pair, dtype) for pair in zip(ours, theirs, strict=True)]
        print(f"\n| {dtype} | token ids equal | text | finish and stop reason | |\n|---|---|---|---|---|")
        print(*rows, sep="\n", flush=True)
        unexplained += sum(bool(row.unexplained) for row in rows)
        runs[dtype] = ours, theirs
    if len(runs) == len(CLOSE) and not options.cases:
        own, other = (distance(*pair) for pair in zip(runs["bfloat16"], runs["float32"], strict=True))
        print(f"\nlog probabilities of prompt tokens, bfloat16 from float32: {own:.3f} on average, vLLM's {other:.3f}")
        unexplained += own > DISTANCE_BAR * other
    print(f"\n{unexplained} cases differ without explanation")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
