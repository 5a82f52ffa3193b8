"""The worker: what an executor talks to, in its own process or in the engine core's.

Process: worker. Knows: the device, the loaded model, memory, the runner and its own spool. Does not know: who calls it.
Every public method is reachable by name through `collective_rpc`; arguments and results are plain values or numpy.
Mirrors: vllm/v1/worker/worker_base.py, vllm/v1/worker/gpu_worker.py, vllm/v1/worker/cpu_worker.py
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from vllm_lite.config import VllmConfig
from vllm_lite.tracing.context import new_span_id, parse_traceparent
from vllm_lite.tracing.recorder import Recorder, now_ns
from vllm_lite.tracing.records import Work
from vllm_lite.wire.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm_lite.wire.step import ModelRunnerOutput, SchedulerOutput
from vllm_lite.worker import device, loader
from vllm_lite.worker.cuda_graphs import CudaCapture
from vllm_lite.worker.model_runner import ModelRunner
from vllm_lite.worker.probe import check_config
from vllm_lite.worker.profiler import WorkerProfiler

CPU_KV_CACHE_BYTES = 4 << 30  # unless told otherwise: enough for a laptop's worth of requests, and memory for everything else


class Worker:
    """Loads the model when it is made. Then, in this order: `get_kv_cache_specs`, `determine_available_memory`,
    `initialize_from_config`, and steps of `execute_model` and `sample_tokens`.

    Raises UnsupportedModelError for a model that cannot be served, VLLMValidationError for a device that is not there.
    """

    def __init__(self, vllm_config: VllmConfig, rank: int = 0) -> None:
        self._vllm_config = vllm_config
        self._rank = rank
        trace_dir = vllm_config.observability_config.trace_dir
        self._recorder = Recorder(trace_dir, "worker", f"rank{rank}") if trace_dir else None
        self._profiler = WorkerProfiler(trace_dir, rank)
        self._step = 0
        self._step_trace: str | None = None
        begun = time.monotonic()
        with self._phase("load_weights"):
            self._load()
        self._load_seconds = time.monotonic() - begun

    def _load(self) -> None:
        config, model_config = self._vllm_config, self._vllm_config.model_config
        assert model_config.max_model_len is not None
        self._device = device.select_device(config.device_config.device)
        if self._device.type == "cpu":
            device.use_cpu_threads()
            device.keep_freed_memory()
        self._hf_config = loader.read_config(model_config)
        check_config(self._hf_config, model_config.max_model_len)
        self._model: torch.nn.Module | None
        model = self._model = self._load_weights()
        self._dtype = device.dtype_name(model.dtype)  # type: ignore[arg-type]
        self._weights_bytes = loader.weights_bytes(model)
        self._runner = ModelRunner(model, config, self._device)

    def _load_weights(self) -> torch.nn.Module:
        config = self._vllm_config
        model = loader.load_weights(config.model_config, self._hf_config, config.load_config.load_format, self._device)
        loader.finalize(model, self._device, compiled=config.model_config.compile)
        return model

    def get_info(self) -> dict[str, Any]:
        """What only the worker knows."""
        return {
            "dtype": self._dtype,
            "device": self._device.type,
            "attention_backend": self._runner.backend.name,
            "weights_bytes": self._weights_bytes,
            "load_seconds": self._load_seconds,
            "supported_tasks": ["generate", "embed"],
        }

    def get_kv_cache_specs(self) -> dict[str, FullAttentionSpec]:
        """Each attention layer's KV cache, by layer name."""
        return self._runner.kv_cache_specs()

    def determine_available_memory(self) -> int:
        """Bytes the KV cache may take: as told, else what is free after weights and the largest step.

        Never more than `max_num_seqs` requests of full length could fill; on a CPU at most CPU_KV_CACHE_BYTES.
        """
        config = self._vllm_config
        if config.cache_config.kv_cache_memory_bytes is not None:
            return config.cache_config.kv_cache_memory_bytes
        share = config.cache_config.gpu_memory_utilization
        if self._device.type == "cuda":
            room = self._free_on_gpu(share)
        else:
            room = min(int(device.free_memory(self._device) * share), CPU_KV_CACHE_BYTES)
        assert config.model_config.max_model_len is not None
        blocks_each = -(-config.model_config.max_model_len // config.cache_config.block_size)
        blocks = 1 + config.scheduler_config.max_num_seqs * blocks_each
        return min(room, blocks * sum(spec.page_size_bytes for spec in self.get_kv_cache_specs().values()))

    def _free_on_gpu(self, share: float) -> int:
        """The share of the whole GPU that may be used, less what is used, what the largest step takes and what graphs keep."""
        before = device.free_memory(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        held = torch.cuda.memory_allocated(self._device)
        self._runner.profile()
        peak = torch.cuda.max_memory_allocated(self._device) - held
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(self._device).total_memory
        return max(0, int(total * share) - (total - before) - peak - self._runner.graph_bytes())

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV cache, run a first small step and capture what CUDA graphs can replay."""
        self._kv_cache_config = kv_cache_config
        with self._phase("warm_up"):
            self._runner.allocate(kv_cache_config)
            self._runner.warm_up()
        self._capture_graphs()

    def _capture_graphs(self) -> None:
        if self._device.type == "cuda" and self._runner.replays:
            with self._phase("capture_graphs"):
                self._runner.capture_graphs(CudaCapture())

    # ---- memory given up for a while -----------------------------------------------------------------------------------------

    def sleep(self, level: int) -> None:
        """Free the KV cache; move the weights to the host (level 1; on a CPU they are there) or drop them (level 2)."""
        self.release_kv_cache_memory()
        if level == 1 and self._model is not None:
            self._model.to("cpu")
        elif level == 2:
            self._model = None
            self._runner.set_model(None)
            device.collect_garbage()
        device.give_memory_back(self._device)

    def release_kv_cache_memory(self) -> None:
        """Free the KV cache alone."""
        self._runner.free_kv_cache()
        device.give_memory_back(self._device)

    def wake_up(self, tags: list[str]) -> None:
        """Take back what `tags` name: "weights" (from the host, or loaded anew), "kv_cache" (empty).

        RuntimeError for the KV cache of a model whose weights were dropped and are not back: they come first.
        """
        if "weights" in tags:
            if self._model is None:
                self._model = self._load_weights()
                self._runner.set_model(self._model)
            else:
                self._model.to(self._device)
        if "kv_cache" in tags:
            if self._model is None:
                raise RuntimeError('the weights were dropped: wake up "weights" before "kv_cache"')
            self._runner.allocate(self._kv_cache_config)
        figures = self.memory_figures()
        if figures["weights"] and figures["kv_cache"]:
            self._capture_graphs()

    def memory_figures(self) -> dict[str, int]:
        """Bytes: `weights` on the device, `kv_cache`, and `process`: allocated on the GPU, or this process' resident memory."""
        model, gpu = self._model, self._device.type == "cuda"
        there = model is not None and next(model.parameters()).device.type == self._device.type
        return {
            "weights": loader.weights_bytes(model) if model is not None and there else 0,
            "kv_cache": self._runner.kv_cache_bytes(),
            "process": torch.cuda.memory_allocated(self._device) if gpu else device.resident_memory(),
        }

    # ---- steps ---------------------------------------------------------------------------------------------------------------

    def profile(self, is_start: bool, prefix: str | None = None, delay: int = 0, most: int = 0) -> str | None:
        """Begin a profile, as WorkerProfiler does, or end it and return its file."""
        if not is_start:
            return self._profiler.stop()
        self._profiler.start(prefix, delay, most)
        return None

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Run the forward pass of a step. None: call `sample_tokens` for its result."""
        if scheduler_output.num_scheduled_tokens:
            self._profiler.step()
        if self._recorder is not None:
            self._recorder.refresh()
        self._step, self._step_trace = scheduler_output.step, scheduler_output.step_trace
        return self._runner.execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: None = None) -> ModelRunnerOutput:
        """Choose the tokens of the step just run. Grammars are not served yet, so `grammar_output` is None."""
        output = self._runner.sample_tokens()
        if self._recorder is not None and self._recorder.level:
            self._record_work(self._recorder)
        return output

    def _record_work(self, recorder: Recorder) -> None:
        parent, clock = parse_traceparent(self._step_trace), self._runner.clock
        if parent is None:  # nobody traces this step
            return
        recorder.append(
            Work(
                step=self._step,
                trace_id=parent.trace_id,
                parent_span_id=parent.span_id,
                span_id=new_span_id(),
                t0=clock.t0,
                t1=clock.t1,
                t2=clock.t2,
                t3=clock.t3,
                device_ns=clock.device_ns(),
                rank=self._rank,
            )
        )
        recorder.flush()

    def shutdown(self) -> None:
        """Close the spool; memory goes with the worker itself. May be called more than once."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        t0 = now_ns()
        yield
        if self._recorder is not None:
            self._recorder.phase(name, t0)
