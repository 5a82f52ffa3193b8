"""Runs one step: rows to a flat batch, the forward pass, sampled tokens back into the rows.

Process: worker. Knows: the model as a callable on a flat batch, the input batch, the attention backend, the sampler. Does not
know: the scheduler's reasons, tracing (it only notes times), how weights were loaded.
Mirrors: vllm/v1/worker/gpu_model_runner.py, vllm/v1/worker/cpu_model_runner.py
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from vllm_lite.config import VllmConfig
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.tracing.recorder import now_ns
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm_lite.wire.step import CachedRequestData, LogprobsLists, ModelRunnerOutput, NewRequestData, SchedulerOutput
from vllm_lite.worker.attention.interface import PagedLayer
from vllm_lite.worker.attention.metadata import Ints
from vllm_lite.worker.attention.selector import select_backend
from vllm_lite.worker.cuda_graphs import Capture, DecodeGraphs, graph_sizes, pad_decodes
from vllm_lite.worker.device import dtype_name
from vllm_lite.worker.input_batch import InputBatch, StepBatch
from vllm_lite.worker.logprobs import PromptPart, gather_logprobs, prompt_logprobs, prompt_parts, row_of
from vllm_lite.worker.pooler import Pooler
from vllm_lite.worker.probe import attention_noted, probe_model
from vllm_lite.worker.sampler import NO_TOKEN, SamplerOutput, sample
from vllm_lite.worker.step_buffer import StepBuffer

NO_TOKEN_MESSAGE = "no token can be sampled: every logit is -inf or not a number"


@dataclass(slots=True)
class StepClock:
    """A step's times, monotonic ns: begun, inputs prepared, forward pass done, tokens sampled; CUDA events where measured."""

    t0: int
    t1: int = 0
    t2: int = 0
    t3: int = 0
    events: list[torch.cuda.Event] = field(default_factory=list)

    def device_ns(self) -> int | None:
        """GPU time between the two events; None where there are none, or where a step that sampled nothing is still at work."""
        if not self.events or not self.events[1].query():  # type: ignore[no-untyped-call]
            return None
        return int(self.events[0].elapsed_time(self.events[1]) * 1e6)


@dataclass(slots=True)
class ComputedStep:
    """A step between its forward pass and its sampling. `logits` [n + m, V]: the n requests `sampled` (indices into the step)
    whose next token is due, then the m prompt tokens of `parts`. `hidden` [T, hidden_size] where a request wants a vector."""

    step: StepBatch
    sampled: Ints
    parts: list[PromptPart]
    logits: torch.Tensor
    hidden: torch.Tensor | None


class ModelRunner:
    """One engine's model and its requests on one device."""

    def __init__(self, model: Any, vllm_config: VllmConfig, device: torch.device) -> None:
        model_config, scheduler_config = vllm_config.model_config, vllm_config.scheduler_config
        assert model_config.max_model_len is not None
        self._device = device
        self._max_model_len = model_config.max_model_len
        self._max_num_seqs = scheduler_config.max_num_seqs
        self._max_num_tokens = scheduler_config.max_num_batched_tokens
        self._block_size = vllm_config.cache_config.block_size
        self.set_model(model)
        self.backend = select_backend(vllm_config, device, model.dtype, self._calls)
        self._inputs = StepBuffer(3 * self._max_num_tokens + 8, torch.int64, device)
        self._compiled = torch.compile(self._forward, fullgraph=True, dynamic=True) if model_config.compile else None
        self.replays = self.backend.capturable and not model_config.enforce_eager
        self._graphs = DecodeGraphs(graph_sizes(self._max_num_seqs, 2 if model_config.compile else 1))
        self._pooler = Pooler()
        self._batch = InputBatch(
            self._max_num_seqs, model_config.max_model_len, self._block_size, model.config.vocab_size, model_config.seed
        )
        self._computed: ComputedStep | None = None
        self.clock = StepClock(0)

    def set_model(self, model: Any) -> None:
        """Use these weights from now on, laid out for the device; None drops those in use, until others come."""
        self._model = model
        self._calls = {} if model is None else probe_model(model, self._max_model_len)

    def kv_cache_specs(self) -> dict[str, FullAttentionSpec]:
        """Each attention layer's cache, by module name."""
        block_size, dtype = self._block_size, dtype_name(self._model.dtype)
        return {
            name: FullAttentionSpec(block_size, call.num_kv_heads, call.head_size, call.head_size_v, dtype, call.sliding_window)
            for name, call in self._calls.items()
        }

    def allocate(self, kv_cache_config: KVCacheConfig) -> None:
        """Make the caches and hang them on the attention modules, where the attention function finds them."""
        for name, call in self._calls.items():
            spec = kv_cache_config.kv_cache_specs[name]
            keys, values = self.backend.allocate(spec, kv_cache_config.num_blocks)
            call.module.paged = PagedLayer(self.backend, keys, values, spec.sliding_window, call.softcap)  # type: ignore[assignment]

    def free_kv_cache(self) -> None:
        """Drop the caches, and the graphs that write to them."""
        self._graphs = DecodeGraphs(self._graphs.sizes)
        for call in self._calls.values():
            call.module.__dict__.pop("paged", None)

    def kv_cache_bytes(self) -> int:
        """Bytes of the caches; 0 where there are none."""
        layers = [call.module.__dict__.get("paged") for call in self._calls.values()]
        return sum(layer.key_cache.nbytes + layer.value_cache.nbytes for layer in layers if layer is not None)

    @torch.inference_mode()
    def profile(self) -> None:
        """The largest step's forward pass without a KV cache, for its memory alone."""
        rows = torch.arange(self._max_num_tokens, device=self._device)
        with attention_noted(self._model):
            logits = self._forward(torch.zeros_like(rows), rows % self._max_model_len, rows[: self._max_num_seqs])
        logits.float().softmax(-1).cumsum(-1, dtype=torch.float64)  # what sampling takes at most

    def warm_up(self) -> None:
        """One small request, so that the first real one does not pay for what libraries set up once.

        Raises UnsupportedModelError where the model was to be compiled and cannot be.
        """
        params, count = SamplingParams(temperature=0.0, seed=0), min(self._block_size, 8)
        request = NewRequestData("warm-up", [0] * count, count, params, None, [[1]], 0)
        try:
            self.execute_model(SchedulerOutput(0, [request], CachedRequestData(), {"warm-up": count}, count))
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().partition("\n")[0]
            raise UnsupportedModelError(f"the model cannot be compiled ({reason}): leave --compile away") from error
        self.sample_tokens()
        self.execute_model(SchedulerOutput(0, [], CachedRequestData(), {}, 0, finished_req_ids=["warm-up"]))

    @torch.inference_mode()
    def capture_graphs(self, capture: Capture) -> None:
        """Let decode steps be replayed from now on. Weights and caches must stay where they are."""
        self._graphs.capture(self._block_size, self._prepare, self._run, capture)

    def graph_bytes(self) -> int:
        """What the captured graphs will keep: each its own logits."""
        return self.replays * sum(self._graphs.sizes) * int(self._model.config.vocab_size) * int(self._model.dtype.itemsize)

    @torch.inference_mode()
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput | None:
        """Forward pass of a step. None: `sample_tokens` has the result; an output where there was nothing to compute."""
        clock = self.clock = StepClock(now_ns())
        self._batch.update(plan)
        self._pooler.forget(plan.finished_req_ids)
        if not plan.num_scheduled_tokens:
            return ModelRunnerOutput([], [])
        step = self._batch.step(plan.num_scheduled_tokens)
        parts = prompt_parts(step, self._batch)
        sampled = np.flatnonzero(step.samples)
        wanted = [step.attention.query_start_loc[1:][sampled] - 1]
        wanted += [np.arange(part.start, part.start + part.count) for part in parts]
        rows = np.concatenate(wanted)
        size = self._graph_size(step, rows)
        inputs = self._prepare(step, rows) if size is None else self._prepare(pad_decodes(step, size), np.arange(size))
        clock.t1 = now_ns()
        if plan.step_trace is not None and self._device.type == "cuda":
            clock.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            clock.events[0].record()
        hidden = None
        if not self._batch.pooling.keys().isdisjoint(step.rows.tolist()):
            kept: list[torch.Tensor] = []  # as they go into the output projection
            with self._model.get_decoder().register_forward_hook(lambda _, __, out: kept.append(out.last_hidden_state)):
                logits = self._forward(*inputs)
            hidden = kept[0][0]
        else:
            logits = self._run(*inputs) if size is None else self._graphs.replay(size)
        clock.t2 = now_ns()
        self._computed = ComputedStep(step, sampled, parts, logits, hidden)
        return None

    @torch.inference_mode()
    def sample_tokens(self) -> ModelRunnerOutput:
        """Choose the next tokens of the step just computed and note them in the batch."""
        computed, self._computed = self._computed, None
        assert computed is not None, "sample_tokens follows an execute_model that returned None"
        step, sampled, batch = computed.step, computed.sampled, self._batch
        rows = step.rows[sampled]
        chosen = sample(computed.logits[: len(sampled)], rows, batch)
        if self.clock.events:
            self.clock.events[1].record()
        token_ids = chosen.token_ids.cpu().numpy()  # the one place where the step waits for the device, if it sampled anything
        self.clock.t3 = now_ns()
        found = prompt_logprobs(computed.logits[len(sampled) :], computed.parts, step, batch)
        good = token_ids != NO_TOKEN
        batch.append(rows[good], token_ids[good])
        answers: list[list[int]] = [[] for _ in step.req_ids]
        errors = {}
        for index, token_id in zip(sampled.tolist(), token_ids.tolist(), strict=True):
            if token_id == NO_TOKEN:
                errors[step.req_ids[index]] = NO_TOKEN_MESSAGE
            else:
                answers[index] = [token_id]
        logprobs = self._logprobs(step, sampled, token_ids, chosen)
        vectors = None if computed.hidden is None else self._pooler.collect(computed.hidden, step, batch, errors)
        return ModelRunnerOutput(step.req_ids, answers, logprobs, found, vectors, errors)

    def _graph_size(self, step: StepBatch, rows: Ints) -> int | None:
        """The captured size for a step of decodes whose last tokens are all that is asked for."""
        count = step.attention.num_reqs
        asked = step.attention.num_decodes == count == len(rows) and step.samples.all()
        return self._graphs.fitting(count) if asked else None

    def _prepare(self, step: StepBatch, rows: Ints) -> tuple[torch.Tensor, ...]:
        """Put a step's numbers on the device; returns what `_run` takes. A model cannot be asked for no logits at all."""
        missing = (1 if self._compiled is None else 2) - len(rows)
        rows = np.concatenate([rows, np.zeros(max(0, missing), np.int64)])
        self.backend.begin_step(step.attention)
        return tuple(self._inputs.views(step.token_ids, step.positions, rows))

    def _run(self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`_forward`, compiled where that was asked for. One token or one row alone would be compiled apart, so neither is."""
        if self._compiled is None or len(token_ids) == 1:
            return self._forward(token_ids, positions, rows)
        # Sizes that are equal in the first step need not be so in the next.
        with torch.fx.experimental._config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            return self._compiled(token_ids, positions, rows)

    def _forward(self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Logits [n, V] of the flat batch's `rows` [n]."""
        output = self._model(token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows)
        logits: torch.Tensor = output.logits[0]
        return logits

    def _logprobs(
        self, step: StepBatch, sampled: Ints, token_ids: Ints, chosen: SamplerOutput
    ) -> list[LogprobsLists | None] | None:
        """One entry for each request of the step, None for those that did not ask; None where nobody did."""
        if chosen.logprobs is None:
            return None
        asked = chosen.logprob_rows
        counts = self._batch.sampling.num_logprobs[step.rows[sampled[asked]]]
        together = gather_logprobs(chosen.logprobs, np.maximum(token_ids[asked], 0), int(counts.max()))
        lists: list[LogprobsLists | None] = [None] * len(step.req_ids)
        for position, (index, count) in enumerate(zip(sampled[asked].tolist(), counts.tolist(), strict=True)):
            lists[index] = row_of(together, position, count)
        return lists
