"""One request for several answers (n > 1): the parent of its children.

Process: front end. Knows: which children are unfinished, and the last outputs of those that are while the caller wants only the
final one. Does not know: detokenizers or queues. The engine core sees the children as requests like any others.
Mirrors: vllm/v1/engine/parallel_sampling.py
"""

import copy

import msgspec

from vllm_lite.outputs import CompletionOutput
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.wire.messages import EngineCoreRequest


class ParentRequest:
    """`request` is never sent itself; `child_requests` are the internal ids of its children that still run."""

    def __init__(self, request: EngineCoreRequest) -> None:
        assert request.sampling_params is not None
        self.request_id = request.request_id
        self.external_req_id = request.external_req_id
        self.sampling_params = request.sampling_params
        self.child_requests: set[str] = set()
        self.max_num_generation_tokens = 0  # of the children that have ended
        self._final: list[CompletionOutput] = []
        self._child_params = msgspec.structs.replace(self.sampling_params, n=1)

    @property
    def n(self) -> int:
        """How many answers were asked for."""
        return self.sampling_params.n

    def get_child_info(self, index: int) -> tuple[str, SamplingParams]:
        """Internal id and parameters of child `index`, which becomes one of those that run.

        With a seed each child has its own, `seed + index`; without, all share one value.
        """
        child_id = f"{index}_{self.request_id}"
        self.child_requests.add(child_id)
        seed = self.sampling_params.seed
        if seed is None:
            return child_id, self._child_params
        return child_id, msgspec.structs.replace(self._child_params, seed=_wrapped(seed + index))

    def get_outputs(self, child_id: str, output: CompletionOutput) -> tuple[list[CompletionOutput], bool]:
        """What goes out now that child `child_id` has made `output`, and whether the whole request is finished.

        FINAL_ONLY waits for the last child and then gives all in order; other kinds pass each output through.
        """
        if output.finished():
            self.child_requests.discard(child_id)
        finished = not self.child_requests
        if self.sampling_params.output_kind is not RequestOutputKind.FINAL_ONLY:
            return [output], finished
        self._final.append(output)
        if not finished:
            return [], False
        return sorted(self._final, key=lambda completion: completion.index), True


def children_of(request: EngineCoreRequest) -> tuple[list[EngineCoreRequest], ParentRequest | None]:
    """What is really sent for `request`: itself, or one request for each of its n answers."""
    if request.sampling_params is None or request.sampling_params.n == 1:
        return [request], None
    parent = ParentRequest(request)
    children = [copy.copy(request) for _ in range(parent.n)]
    for index, child in enumerate(children):
        child.request_id, child.sampling_params = parent.get_child_info(index)
    return children, parent


def _wrapped(seed: int) -> int:
    """Seeds are signed 64-bit numbers; one past the largest is the smallest."""
    return (seed + 2**63) % 2**64 - 2**63
