"""Rules about the shape of traces: every span has its parent, its own id, its place in time, and links that answer each other.

Process: readers. Knows: spans. Does not know: records, files.
Mirrors: nothing in vLLM.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from vllm_lite.tracing.check.counts import Held
from vllm_lite.tracing.context import SpanContext
from vllm_lite.tracing.spans import Kind, Link, Span
from vllm_lite.tracing.spans.model import INCOMPLETE

STEP = "engine_core.step"
REQUEST_STEP = "request.step"
ELIDED = "vllm_lite.steps_elided"
Key = tuple[str, str]  # trace id, span id


class Trees:
    """The spans of a run by id. `callers` are the span ids that came in traceparent headers: parents that are not ours."""

    def __init__(self, spans: Sequence[Span], callers: set[str]) -> None:
        self.spans = spans
        self.callers = callers
        self.by_id: dict[Key, Span] = {_key(span): span for span in spans}

    def parent(self, span: Span) -> Span | None:
        """The span that `span` hangs on, None for a root or one whose parent is not ours."""
        return self.by_id.get((span.trace_id, span.parent_span_id or ""))

    def top(self, span: Span) -> Span:
        """The highest of our spans above `span`; of a spool that lies there twice, one may be its own parent."""
        passed = set[str]()
        while span.span_id not in passed and (parent := self.parent(span)) is not None:
            passed.add(span.span_id)
            span = parent
        return span

    def no_orphans(self) -> Iterator[Held]:
        """Each parent is in the run, or is the caller's own span."""
        for span in self.spans:
            foreign = span.parent_span_id is None or span.parent_span_id in self.callers
            yield foreign or self.parent(span) is not None, f"{_name(span)} has no parent {span.parent_span_id}"

    def unique_ids(self) -> Iterator[Held]:
        """No two spans share an id, not even in different traces."""
        for span_id, count in Counter(span.span_id for span in self.spans).items():
            yield count == 1, f"{count} spans have the id {span_id}"

    def one_root(self) -> Iterator[Held]:
        """A trace has one root, or none where it began at a caller. What a killed sender left without a parent is no root."""
        traces: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            traces[span.trace_id].append(span)
        for trace_id, spans in traces.items():
            tops = [span for span in spans if span.parent_span_id is None]
            lost = sum(span.remote_parent and INCOMPLETE in span.attributes for span in tops)
            called = lost or any(span.parent_span_id in self.callers for span in spans)
            count = len(tops) - lost
            yield count == 1 or (count == 0 and bool(called)), f"trace {trace_id} has {count} roots"

    def nesting(self) -> Iterator[Held]:
        """No span ends before it starts; a child lies within its parent, to the nanosecond, but what a message started, or a
        call that was given up, may end at any time after."""
        for span in self.spans:
            yield span.start <= span.end, f"{_name(span)} ends {span.start - span.end} ns before it starts"
            parent = self.parent(span)
            if parent is None:
                continue
            goes_on = span.kind is Kind.CONSUMER or (span.kind is Kind.SERVER and parent.error is not None)
            late = max(parent.start - span.start, 0 if goes_on else span.end - parent.end)
            yield late <= 0, f"{_name(span)} is {late} ns outside {_name(parent)}"

    def links(self) -> Iterator[Held]:
        """Each link points at a span of the run."""
        for span in self.spans:
            for link in span.links:
                yield _key(link) in self.by_id, f"{_name(span)} links to {link.span_id}, which is not there"

    def links_both_ways(self) -> Iterator[Held]:
        """The steps that link to a request are the steps that its request.step spans link to (level 3)."""
        steps: dict[Key, set[Key]] = defaultdict(set)  # of each request root
        own: dict[Key, set[Key]] = defaultdict(set)
        elided: Counter[Key] = Counter()
        for span in self.spans:
            if span.name == STEP:
                for link in span.links:
                    steps[_key(link)].add(_key(span))
            elif span.name == REQUEST_STEP:
                own[_key(self.top(span))].update(map(_key, span.links))
            elif ELIDED in span.attributes:
                elided[_key(self.top(span))] += int(str(span.attributes[ELIDED]))
        for root in own.keys() | elided.keys():
            missing, extra = len(steps[root] - own[root]), len(own[root] - steps[root])
            told = f"request {root[1]}: {missing} of its steps are not in it ({elided[root]} elided), {extra} do not know it"
            yield extra == 0 and missing <= elided[root], told

    def reachable(self, caller: SpanContext, roles: Iterable[str]) -> Iterator[Held]:
        """From the caller's span, down to children and along links both ways, a span of each of these processes is reached."""
        below: dict[str, list[Span]] = defaultdict(list)
        pointing: dict[Key, list[Span]] = defaultdict(list)
        for span in self.spans:
            below[span.parent_span_id or ""].append(span)
            for link in span.links:
                pointing[_key(link)].append(span)
        reached: dict[Key, Span] = {}
        waiting = [span for span in below[caller.span_id] if span.trace_id == caller.trace_id]
        while waiting:
            span = waiting.pop()
            if _key(span) not in reached:
                reached[_key(span)] = span
                linked = [self.by_id[_key(link)] for link in span.links if _key(link) in self.by_id]
                waiting += below[span.span_id] + pointing[_key(span)] + linked
        for role in roles:
            there = any(span.process.role == role for span in reached.values())
            yield there, f"no span of the {role} is reached from the caller's span {caller.span_id}"


def _key(span: Span | Link) -> Key:
    return span.trace_id, span.span_id


def _name(span: Span) -> str:
    return f"{span.name} ({span.span_id})"
