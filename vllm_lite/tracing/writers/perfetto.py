"""Chrome's trace JSON, which ui.perfetto.dev and chrome://tracing open: requests and processes as rows, letters as arrows.

Process: readers. Knows: that format; its times are microseconds, here since the first span. Does not know: spools.
Slices of one row must nest, and our spans of one request do not (the mailbox outlives the stay in the engine core), so a row
has as many lanes as it takes.
Mirrors: nothing in vLLM.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from vllm_lite.tracing.spans import Span
from vllm_lite.tracing.spans.model import REQUEST_ID

REQUESTS = "requests"
_THREADS = {"frontend": "event loop", "engine-core": "main thread", "worker": "worker"}
_OWN_ROWS = {"engine_core.step": "steps", "send engine_core.outputs": "output thread"}
_COUNTERS = {"running": "vllm_lite.num_running", "waiting": "vllm_lite.num_waiting", "KV cache used": "vllm_lite.kv.usage"}
_PUTS = ("collector.put", "collector.merge")


Row = tuple[str, str]  # where spans are drawn: a group (a process, or all requests), and a name in it


def write_perfetto_json(spans: Iterable[Span], path: Path, environ: Mapping[str, str]) -> int:
    """Write `spans` to `path`. Returns how many there were. The format has no place for what `environ` says."""
    drawn = list(spans)
    path.write_bytes(msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": list(perfetto_events(drawn))}))
    return len(drawn)


def perfetto_events(spans: list[Span]) -> Iterator[dict[str, Any]]:
    """The events of all `spans`: names of rows, slices, instants, arrows and counters."""
    start = min((span.start for span in spans), default=0)
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    rows: dict[Row, list[Span]] = {}
    requests: dict[Any, list[Span]] = {}  # by id; one may come again
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        root = _root(span, by_id)
        rows.setdefault(_row(span, root), []).append(span)
        if root is span and REQUEST_ID in span.attributes:
            requests.setdefault(span.attributes[REQUEST_ID], []).append(span)
    pids = {group: number for number, group in enumerate(sorted({group for group, _ in rows}, key=_place), 1)}
    for group, pid in pids.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": group}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    places: dict[str, dict[str, int]] = {}  # of spans, by id
    tids = itertools.count(1)
    for (group, name), own in rows.items():
        for number, lane in enumerate(_lanes(own), 1):
            place = {"pid": pids[group], "tid": next(tids)}
            shown = f"{name} ({number})" if number > 1 else name
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": shown}}
            for span in lane:
                places[span.span_id] = place
                yield from _slice(span, place, start)
    numbers = itertools.count()
    for span in spans:
        for t, request_id in _puts(span):
            asked = [request for request in requests.get(request_id, ()) if request.start <= t]
            if asked:
                arrow = {"name": "letter", "cat": "letter", "id": next(numbers)}
                yield {"ph": "s", **arrow, **places[span.span_id], "ts": (span.start - start) / 1000}
                yield {"ph": "f", "bp": "e", **arrow, **places[asked[-1].span_id], "ts": (t - start) / 1000}


def _root(span: Span, by_id: dict[tuple[str, str], Span]) -> Span:
    """The highest span above it that is there; in a file of others' making they may stand in a circle."""
    passed = set[str]()
    while span.span_id not in passed and (parent := by_id.get((span.trace_id, span.parent_span_id or ""))) is not None:
        passed.add(span.span_id)
        span = parent
    return span


def _row(span: Span, root: Span) -> Row:
    if "gen_ai.operation.name" in root.attributes:
        return REQUESTS, f"{root.attributes.get(REQUEST_ID, root.span_id)} {root.trace_id[:8]}"
    process = span.process
    name = _OWN_ROWS.get(span.name, _THREADS.get(process.role, process.role))
    return f"{process.role} {process.pid} on {process.host}", name


def _place(group: str) -> tuple[int, str]:
    """Requests first, then processes as a token meets them."""
    role = group.partition(" ")[0]
    return [REQUESTS, *_THREADS, role].index(role), group


def _lanes(spans: list[Span]) -> list[list[Span]]:
    """Each span in the first lane where it lies wholly within, or wholly beside, what is there."""
    lanes: list[tuple[list[Span], list[int]]] = []  # with the ends of what is open
    for span in spans:
        for _, open_until in lanes:
            while open_until and open_until[-1] <= span.start:
                open_until.pop()
        lane = next((lane for lane in lanes if not lane[1] or span.end <= lane[1][-1]), None)
        if lane is None:
            lanes.append(lane := ([], []))
        lane[0].append(span)
        lane[1].append(span.end)
    return [own for own, _ in lanes]


def _slice(span: Span, place: dict[str, int], start: int) -> Iterator[dict[str, Any]]:
    told = {**span.attributes, "trace_id": span.trace_id, "span_id": span.span_id}
    ts = (span.start - start) / 1000
    yield {"ph": "X", "name": span.name, **place, "ts": ts, "dur": (span.end - span.start) / 1000, "args": told}
    for name, t, attributes in span.events:
        if name not in _PUTS or REQUEST_ID not in attributes:  # those become arrows
            yield {"ph": "i", "s": "t", "name": name, **place, "ts": (t - start) / 1000, "args": attributes}
    for name, key in _COUNTERS.items():
        if key in span.attributes:
            yield {"ph": "C", "name": name, "pid": place["pid"], "ts": ts, "args": {name: span.attributes[key]}}


def _puts(span: Span) -> list[tuple[int, Any]]:
    """Time and request of each letter put into a mailbox, stapled ones too."""
    return [(t, attributes[REQUEST_ID]) for name, t, attributes in span.events if name in _PUTS and REQUEST_ID in attributes]
