"""Hidden states of embedding requests, chunk by chunk, to one vector each.

Process: worker. Knows: the last hidden states of a flat batch, PoolingParams. Does not know: logits or sampling.
Mirrors: vllm/model_executor/layers/pooler/
"""

import numpy as np
import numpy.typing as npt
import torch

from vllm_lite.pooling_params import PoolingParams
from vllm_lite.worker.input_batch import InputBatch, StepBatch

NOT_FINITE_MESSAGE = "no vector can be made: a hidden state is infinite or not a number"
Vector = npt.NDArray[np.float32]


class Pooler:
    """Keeps what earlier chunks gave: the sum for "mean", the first state for "cls"."""

    def __init__(self) -> None:
        self._partial: dict[str, torch.Tensor] = {}

    def collect(self, hidden: torch.Tensor, step: StepBatch, batch: InputBatch, errors: dict[str, str]) -> list[Vector | None]:
        """`hidden` [T, hidden_size] of a step. One entry for each of its requests: float32 [hidden_size] once a prompt is
        complete, else None. A request whose vector holds no numbers is put into `errors`."""
        vectors: list[Vector | None] = [None] * len(step.req_ids)
        starts = step.attention.query_start_loc
        for index, (req_id, row) in enumerate(zip(step.req_ids, step.rows.tolist(), strict=True)):
            params = batch.pooling.get(row)
            if params is None:
                continue
            if step.first_positions[index] == 0:
                self._partial.pop(req_id, None)  # a preempted request begins again
            state = self._take(req_id, params, hidden[starts[index] : starts[index + 1]].float())
            if step.attention.seq_lens[index] >= batch.num_tokens[row]:
                self._partial.pop(req_id, None)
                vector = state / batch.num_tokens[row] if params.pooling_type == "mean" else state
                vector = torch.nn.functional.normalize(vector, dim=0) if params.normalize else vector
                vectors[index] = vector.cpu().numpy()
                if not vector.isfinite().all():
                    errors[req_id] = NOT_FINITE_MESSAGE
        return vectors

    def _take(self, req_id: str, params: PoolingParams, states: torch.Tensor) -> torch.Tensor:
        """What is known of the vector after one more chunk of states [n, hidden_size]."""
        if params.pooling_type == "last":
            return states[-1]
        before = self._partial.get(req_id)
        if params.pooling_type == "cls":
            state = states[0] if before is None else before
        else:
            state = states.sum(0) if before is None else before + states.sum(0)
        self._partial[req_id] = state
        return state

    def forget(self, req_ids: list[str]) -> None:
        """Drop what was kept for requests that ended within their prompt."""
        for req_id in req_ids:
            self._partial.pop(req_id, None)
