"""The nine stations of a token's journey: the one list that code, spans, timelines, tours and docs agree on.

Process: all. Knows: names and places. Does not know: how a record is written.
Mirrors: nothing in vLLM.
"""

from typing import NamedTuple


class Station(NamedTuple):
    """One stop of the journey."""

    code: str
    name: str
    meaning: str
    process: str
    place: str


STATIONS: dict[str, Station] = {
    s.code: s
    for s in (
        Station("S1", "accept", "a request arrives", "frontend", "generate(), add_request()"),
        Station("S2", "tokenise", "prompt to token ids, checked", "frontend", "renderer, InputProcessor"),
        Station("S3", "post", "registered, encoded, sent", "frontend", "OutputProcessor.add_request, then the core client"),
        Station("S4", "receive", "decoded by the input thread, queued", "engine-core", "input thread to scheduler queue"),
        Station("S5", "schedule", "tokens and KV blocks granted", "engine-core", "Scheduler.schedule"),
        Station("S6", "execute", "forward pass and sampling", "worker", "execute_model, sample_tokens"),
        Station("S7", "bag", "outputs packed and sent", "engine-core", "update_from_output, output thread"),
        Station("S8", "sort", "bag opened, sliced, detokenised", "frontend", "output handler, OutputProcessor"),
        Station("S9", "mailbox", "put, stapled, kept back, taken", "frontend", "RequestOutputCollector, generate()"),
    )
}
