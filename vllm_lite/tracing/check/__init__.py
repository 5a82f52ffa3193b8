"""Does a run's record hold together? Compares the spools with themselves, and with what the callers wrote in client.jsonl.

Process: readers (`vllm-lite trace check`, tests). Knows: the journey model and spans. Does not know: how findings are printed.
Mirrors: nothing in vLLM.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from vllm_lite.tracing.check import counts
from vllm_lite.tracing.check.counts import ClientLine, Held
from vllm_lite.tracing.check.trees import Trees
from vllm_lite.tracing.context import SpanContext
from vllm_lite.tracing.journey import Run
from vllm_lite.tracing.spans import run_spans

__all__ = ["ClientLine", "Finding", "check_run", "engine_dead", "judge", "reachable", "read_client", "read_lines"]

_KINDS = {"request_id": str, "traceparent": str | None, "token_ids": list | None}  # of a caller's line, where rules look inside


class Finding(NamedTuple):
    """A rule, how many things it was applied to, and a sentence for each that broke it."""

    rule: str
    checked: int
    failures: list[str]

    @property
    def ok(self) -> bool:
        """Nothing broke the rule."""
        return not self.failures


def judge(rule: str, applications: Iterable[Held]) -> Finding:
    """The verdict on a rule, which yields what it is applied to."""
    checked, failures = 0, []
    for holds, sentence in applications:
        checked += 1
        if not holds:
            failures.append(sentence)
    return Finding(rule, checked, failures)


def check_run(run: Run, client: Sequence[ClientLine] | None = None) -> list[Finding]:
    """Apply every rule. `client` is what `read_client` gave, None where no caller kept a record."""
    trees = _trees(run)
    rules = {
        "one end per request": counts.one_close(run),
        "letters add up": counts.letters(run),
        "tokens add up": counts.tokens(run, client),
        "bags add up": counts.bags(run),
        "steps and bags": counts.steps(run),
        "aborts": counts.aborts(run),
        "no orphans": trees.no_orphans(),
        "unique span ids": trees.unique_ids(),
        "one root per trace": trees.one_root(),
        "nesting": trees.nesting(),
        "links": trees.links(),
        "links both ways": trees.links_both_ways(),
        "nothing lost": counts.nothing_lost(run),
    }
    return [judge(rule, applications) for rule, applications in rules.items()]


def engine_dead(run: Run) -> Finding:
    """The rule for a run whose engine core was killed."""
    return judge("engine dead", counts.engine_dead(run))


def reachable(run: Run, caller: SpanContext, roles: Iterable[str]) -> Finding:
    """Whether the spans of all these processes hang together with the caller's own span."""
    return judge("reachable", _trees(run).reachable(caller, roles))


def _trees(run: Run) -> Trees:
    callers = {request.accept.parent_span_id for request in run.requests if request.accept.parent_span_id is not None}
    return Trees(list(run_spans(run)), callers)


def read_client(run_dir: Path) -> list[ClientLine] | None:
    """The callers' own record of the run, one line for each; None where there is none."""
    path = run_dir / "client.jsonl"
    if not path.exists():
        return None
    return read_lines(path)[0]


def read_lines(path: Path) -> tuple[list[ClientLine], int]:
    """Callers' lines in a file of JSON lines, and how many others it holds: a killed front end leaves its last one torn."""
    read, torn = [], 0
    for text in filter(str.strip, path.read_text(encoding="utf-8", errors="replace").splitlines()):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict) and all(isinstance(line.get(name), kind) for name, kind in _KINDS.items()):
            read.append(line)
        else:
            torn += 1
    return read, torn
