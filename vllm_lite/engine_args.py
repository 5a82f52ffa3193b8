"""The flat list of engine options, as keyword arguments and as command-line flags, and the VllmConfig they make.

Process: front end, before the engine starts. Knows: vLLM's option names and the part of the configuration each belongs to.
Does not know: limits of values (each part checks its own) or any class of the engine.
Mirrors: vllm/engine/arg_utils.py
"""

import argparse
import dataclasses
import difflib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import msgspec

from vllm_lite.config import (
    CacheConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm_lite.config.checks import check_bool, check_int, refuse
from vllm_lite.config.model import ATTENTION_BACKENDS, DTYPES
from vllm_lite.config.model_files import DEFAULT_MODEL, resolve_model
from vllm_lite.config.vllm import DEVICES, LOAD_FORMATS, POLICIES
from vllm_lite.exceptions import VLLMValidationError

Part = TypeVar("Part")
NOT_SERVED = dict.fromkeys(
    ("tensor_parallel_size", "tp", "pipeline_parallel_size", "pp", "enable_expert_parallel", "ep", "enable_elastic_ep"),
    "each worker runs the whole model; data_parallel_size starts more engine cores with one each",
) | {
    "speculative_config": "every step computes each request's next token with the model itself",
    "kv_transfer_config": "the KV cache stays with its engine core",
    "limit_mm_per_prompt": "a prompt is text, chat messages or token ids",
    "enable_lora": "merge the adapter into the weights and give that folder as model",
    "quantization": "give a model whose weights are not quantised, or a .gguf file, which is unpacked",
}


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def _option(default: Any, help_text: str, kind: Any = str, choices: tuple[str, ...] | None = None) -> Any:
    """A field that is also a flag; `kind` turns the flag's text into the value."""
    metadata = {"help": help_text, "kind": kind, "choices": choices}
    if kind is _json_object:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def tell_unknown(option: str, words: str, known: Iterable[str]) -> str:
    """Why vLLM's `option` (a name or a flag) is not served, else these `words` and which of the `known` ones may be meant."""
    option = option.partition("=")[0]
    if (why := NOT_SERVED.get(option.lstrip("-").replace("-", "_"))) is not None:
        return f"{option} is not served: {why}"
    close = difflib.get_close_matches(option, known, n=1, cutoff=0.75)  # a name less alike was hardly meant
    return words + (f" (did you mean {close[0]}?)" if close else "")


_METAVARS = {str: "TEXT", int: "N", float: "X", _json_object: "JSON"}


@dataclass
class EngineArgs:
    """Every option of an engine. None means "decided for you"; each field's help says how.

    A value out of range or of the wrong type raises VLLMValidationError from `create_engine_config`, naming the field.
    """

    model: str = _option(DEFAULT_MODEL, "a local folder or .gguf file, a hub id, or 'tiny' (random weights, made on the fly)")
    served_model_name: str | None = _option(None, "the model's name in answers and spans; the same as --model where absent")
    tokenizer: str | None = _option(None, "where the tokenizer lies, if not with the model")
    skip_tokenizer_init: bool = _option(False, "token ids in and out, no text", bool)
    dtype: str = _option("auto", "of weights and activations; 'auto' is what config.json says", choices=DTYPES)
    seed: int = _option(ModelConfig.seed, "of requests that bring none", int)
    max_model_len: int | None = _option(None, "prompt and answer tokens together; the model's own limit where absent", int)
    max_logprobs: int = _option(ModelConfig.max_logprobs, "the most log probabilities one request may ask for; -1: all", int)
    enforce_eager: bool = _option(False, "run every step op by op, without CUDA graphs", bool)
    compile: bool = _option(False, "compile the model with torch.compile at start; CUDA only", bool)
    attention_backend: str = _option(
        "auto", "who computes attention; 'auto' is triton on CUDA, else torch_sdpa", choices=ATTENTION_BACKENDS
    )
    load_format: str = _option("auto", "where weights come from; 'dummy' is random values", choices=LOAD_FORMATS)
    device: str = _option("auto", "where to compute; 'auto' is CUDA where there is one, else the CPU", choices=DEVICES)
    block_size: int = _option(CacheConfig.block_size, "tokens in one KV cache block", int)
    gpu_memory_utilization: float = _option(
        CacheConfig.gpu_memory_utilization, "the share of the GPU's memory for weights, activations and KV cache", float
    )
    kv_cache_memory_bytes: int | None = _option(None, "the KV cache's size; measured where absent", int)
    num_gpu_blocks_override: int | None = _option(None, "the KV cache's size in blocks; beats every other way", int)
    enable_prefix_caching: bool = _option(True, "keep the KV blocks of earlier prompts for later ones that begin alike", bool)
    max_num_batched_tokens: int | None = _option(None, "the most tokens in one step; 2048, or more where needed", int)
    max_num_seqs: int = _option(SchedulerConfig.max_num_seqs, "the most requests in one step", int)
    enable_chunked_prefill: bool = _option(True, "compute a long prompt in several steps, between other requests", bool)
    long_prefill_token_threshold: int = _option(0, "the most prompt tokens of one request in one step; 0: no such limit", int)
    scheduling_policy: str = _option(
        "fcfs", "who goes first: the first to come, or by each request's priority", choices=POLICIES
    )
    scheduler_reserve_full_isl: bool = _option(True, "admit a prompt only where all of it fits the KV cache", bool)
    max_num_queued_reqs: int | None = _option(None, "the most requests in the engine before new ones are turned away", int)
    max_num_queued_tokens: int | None = _option(None, "the most waiting prompt tokens before new requests are turned away", int)
    async_scheduling: bool | None = _option(None, "plan the next step while one runs; on where that helps, if absent", bool)
    stream_interval: int = _option(SchedulerConfig.stream_interval, "tokens between two outputs of a stream", int)
    distributed_executor_backend: str = _option(
        "uni", "worker inside the engine core (uni), in processes of its own (mp), none (toy), or module:Class of an Executor"
    )
    data_parallel_size: int = _option(1, "engine cores with the whole model each, behind one front end or several", int)
    data_parallel_rank: int = _option(0, "the one of them behind this front end, with --data-parallel-external-lb", int)
    data_parallel_external_lb: bool = _option(False, "a balancer elsewhere chooses among front ends of one rank each", bool)
    shutdown_timeout: float = _option(0.0, "seconds that requests in flight get to end once the engine is told to", float)
    otlp_traces_endpoint: str | None = _option(None, "where spans are sent, such as http://localhost:4317")
    trace_level: int | None = _option(None, "0 off, 1 requests and steps, 2 + tokens, 3 + a span per request and step", int)
    trace_dir: str | None = _option(None, "the run directory; one under the user's state folder where absent")
    trace_keep: bool = _option(False, "keep the spools after they were exported", bool)
    trace_steps: str | None = _option(None, "'sampled', 'all', 'off' or a ratio; $VLLM_LITE_TRACE_STEPS, else 'sampled'")
    additional_config: dict[str, Any] = _option(None, "settings of plug-in executors", _json_object)  # noqa: RUF009  (a field)

    def __new__(cls, *_: object, **options: object) -> Self:
        """Refuse names that are no option, before Python does so without a word on what to do."""
        for name, value in options.items():
            if name not in cls.__dataclass_fields__:
                said = tell_unknown(name, f"{name} is no option of {cls.__name__}", cls.__dataclass_fields__)
                raise VLLMValidationError(said, parameter=name, value=value)
        return super().__new__(cls)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give `parser` one flag for each field, `--max-model-len` for `max_model_len`; a bool also gets `--no-...`."""
        for field in dataclasses.fields(cls):
            flag = "--" + field.name.replace("_", "-")
            default = {} if field.default is dataclasses.MISSING else field.default
            kind, choices, text = (field.metadata[key] for key in ("kind", "choices", "help"))
            if default not in (None, {}):
                text += f" ({default})"
            if kind is bool:
                parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
            else:
                metavar = None if choices else _METAVARS[kind]
                parser.add_argument(flag, type=kind, choices=choices, default=default, metavar=metavar, help=text)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """The options in a parsed command line; fields that its parser does not have keep their defaults."""
        return cls(**{f.name: getattr(args, f.name) for f in dataclasses.fields(cls) if hasattr(args, f.name)})

    def create_engine_config(self) -> VllmConfig:
        """Check every option, then find the model (which may fetch it) and read its limits.

        Raises VLLMValidationError naming a bad option, UnsupportedModelError where there is no such model.
        """
        unresolved = self._config(self._part(ModelConfig)).model_config
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                check_bool(field.name, value)
            _check_wire(field.name, value)
        model = dataclasses.replace(
            unresolved,
            model_path=str(resolve_model(self.model)),
            tokenizer=None if self.tokenizer is None else str(resolve_model(self.tokenizer, "tokenizer")),
        )
        return self._config(model)

    def _config(self, model: ModelConfig) -> VllmConfig:
        check_int("max_num_seqs", self.max_num_seqs, 1)
        room = self.max_num_batched_tokens
        if room is None:
            whole_prompt = 0 if self.enable_chunked_prefill else model.max_model_len or 0
            room = max(SchedulerConfig.max_num_batched_tokens, self.max_num_seqs, whole_prompt)
        steps = self.trace_steps if self.trace_steps is not None else os.environ.get("VLLM_LITE_TRACE_STEPS", "sampled")
        return self._part(
            VllmConfig,
            model_config=model,
            cache_config=self._part(CacheConfig),
            scheduler_config=self._part(SchedulerConfig, max_num_batched_tokens=room, policy=self.scheduling_policy),
            parallel_config=self._part(ParallelConfig),
            load_config=self._part(LoadConfig),
            device_config=self._part(DeviceConfig),
            observability_config=self._part(ObservabilityConfig, trace_steps=steps),
        )

    def _part(self, kind: type[Part], **given: Any) -> Part:
        """A part of the configuration: options that have the names of its fields, and what is `given`."""
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        own = {f.name: getattr(self, f.name) for f in fields if hasattr(self, f.name)}
        return kind(**own | given)


@dataclass
class AsyncEngineArgs(EngineArgs):
    """The options of an AsyncLLM: the same, and what it logs."""

    disable_log_stats: bool = _option(False, "count nothing: no figures in the log, no metrics", bool)
    aggregate_engine_logging: bool = _option(False, "one line in the log for all engine cores together", bool)
    enable_log_requests: bool = _option(False, "log each request that is added, fails or is given up", bool)


def _check_wire(field: str, value: object) -> None:
    """Refuse what cannot be told to another process."""
    try:
        msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        kinds = "strings without lone surrogates, integers of 64 bits, floats, booleans, lists and dictionaries"
        raise refuse(field, value, f"made of plain values: {kinds}") from None
