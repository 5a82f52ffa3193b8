from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vllm_lite import LLM, AsyncEngineArgs, EngineArgs
from vllm_lite.config import model_files
from vllm_lite.engine_args import NOT_SERVED
from vllm_lite.exceptions import UnsupportedModelError, VLLMValidationError

CHANGED: dict[str, Any] = {
    "data_parallel_size": 4,
    "data_parallel_rank": 2,
    "data_parallel_external_lb": True,
    "served_model_name": "small",
    "skip_tokenizer_init": True,
    "dtype": "float64",
    "seed": 3,
    "max_model_len": 100,
    "max_logprobs": 5,
    "enforce_eager": True,
    "attention_backend": "triton",
    "load_format": "dummy",
    "device": "cpu",
    "block_size": 8,
    "gpu_memory_utilization": 0.5,
    "kv_cache_memory_bytes": 1000,
    "num_gpu_blocks_override": 10,
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 50,
    "max_num_seqs": 4,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 7,
    "scheduling_policy": "priority",
    "scheduler_reserve_full_isl": False,
    "max_num_queued_reqs": 9,
    "max_num_queued_tokens": 900,
    "async_scheduling": False,
    "stream_interval": 2,
    "distributed_executor_backend": "toy",
    "shutdown_timeout": 1.5,
    "otlp_traces_endpoint": "http://localhost:4317",
    "trace_level": 2,
    "trace_dir": "here",
    "trace_keep": True,
    "trace_steps": "all",
    "additional_config": {"toy_step_time": 0.1},
}


def test_every_option_reaches_its_part(tiny_model_path: Path) -> None:
    config = EngineArgs(model=str(tiny_model_path), tokenizer=str(tiny_model_path), **CHANGED).create_engine_config()
    parts = [getattr(config, field.name) for field in dataclasses.fields(config)]
    for option, value in CHANGED.items():
        name = {"scheduling_policy": "policy"}.get(option, option)
        holders = [part for part in parts if not isinstance(part, dict) and hasattr(part, name)] or [config]
        assert [getattr(holder, name) for holder in holders] == [value], name
    assert config.model_config.model == str(tiny_model_path)
    assert config.model_config.model_path == config.model_config.tokenizer == str(tiny_model_path)
    assert {field.name for field in dataclasses.fields(EngineArgs)} == {"model", "tokenizer", "compile", *CHANGED}
    assert EngineArgs(model=str(tiny_model_path), compile=True).create_engine_config().model_config.compile


def test_defaults_are_the_parts_own(tiny_model_path: Path) -> None:
    config = EngineArgs(model=str(tiny_model_path)).create_engine_config()
    for field in dataclasses.fields(config):
        if field.name in ("model_config", "additional_config", "shutdown_timeout"):
            continue
        part = getattr(config, field.name)
        assert part == type(part)(), field.name
    assert (config.additional_config, config.shutdown_timeout) == ({}, 0.0)


@pytest.mark.parametrize(
    ("options", "room"),
    [
        ({}, 2048),
        ({"max_num_seqs": 3000}, 3000),
        ({"enable_chunked_prefill": False}, 4096),
        ({"enable_chunked_prefill": False, "max_model_len": 100}, 2048),
    ],
)
def test_a_step_has_room_enough_where_none_is_given(tiny_model_path: Path, options: dict[str, Any], room: int) -> None:
    config = EngineArgs(model=str(tiny_model_path), **options).create_engine_config()
    assert config.scheduler_config.max_num_batched_tokens == room


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", None),
        ("tokenizer", 5),
        ("served_model_name", b"x"),
        ("skip_tokenizer_init", "no"),
        ("enforce_eager", 0),
        ("attention_backend", "flash"),
        ("compile", 1),
        ("dtype", "int8"),
        ("seed", -1),
        ("max_model_len", 0),
        ("load_format", "pickle"),
        ("device", "tpu"),
        ("block_size", 0),
        ("max_num_seqs", "many"),
        ("max_num_batched_tokens", 0),
        ("enable_chunked_prefill", None),
        ("max_num_queued_reqs", 0),
        ("distributed_executor_backend", "ray"),
        ("shutdown_timeout", -1),
        ("trace_level", 9),
        ("trace_steps", "few"),
        ("trace_dir", 5),
        ("otlp_traces_endpoint", 5),
        ("served_model_name", "\ud800"),
        ("block_size", 2**70),
        ("gpu_memory_utilization", np.float64(0.5)),
        ("additional_config", [1]),
        ("additional_config", {"a": object()}),
    ],
)
def test_a_bad_option_is_refused_before_the_model_is_looked_for(
    field: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "_cached", lambda *args: pytest.fail("looked for the model"))
    with pytest.raises(VLLMValidationError, match=rf"^{field} must be ") as caught:
        EngineArgs(**{"model": "tiny", field: value}).create_engine_config()
    assert caught.value.parameter == field


@pytest.mark.parametrize("field", ["disable_log_stats", "enable_log_requests"])
def test_what_an_async_engine_logs(tiny_model_path: Path, field: str) -> None:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    assert getattr(AsyncEngineArgs.from_cli_args(parser.parse_args(["--" + field.replace("_", "-")])), field) is True
    with pytest.raises(VLLMValidationError, match=f"^{field} must be "):
        AsyncEngineArgs(str(tiny_model_path), **{field: 1}).create_engine_config()  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [EngineArgs, AsyncEngineArgs, LLM])
@pytest.mark.parametrize("option", NOT_SERVED)
def test_an_option_of_vllm_that_is_not_served_says_what_to_do_instead(kind: Callable[..., object], option: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^{option} is not served: {re.escape(NOT_SERVED[option])}$") as caught:
        kind(model="tiny", **{option: 2})
    assert (caught.value.parameter, caught.value.value) == (option, 2)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("modle", "modle is no option of AsyncEngineArgs (did you mean model?)"),
        ("enable_prefix_cache", "enable_prefix_cache is no option of AsyncEngineArgs (did you mean enable_prefix_caching?)"),
        ("enable_log_request", "enable_log_request is no option of AsyncEngineArgs (did you mean enable_log_requests?)"),
        ("revision", "revision is no option of AsyncEngineArgs"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_nearest_one(option: str, said: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^{re.escape(said)}$"):
        AsyncEngineArgs(**{option: 1})  # type: ignore[arg-type]


def test_options_that_are_served_are_in_no_table_of_others() -> None:
    assert not NOT_SERVED.keys() & {field.name for field in dataclasses.fields(AsyncEngineArgs)}


def test_an_unknown_model() -> None:
    with pytest.raises(UnsupportedModelError, match="no-such"):
        EngineArgs(model="no-such").create_engine_config()


def test_trace_steps_come_from_the_environment_where_not_given(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LITE_TRACE_STEPS", "0.25")
    model = str(tiny_model_path)
    assert EngineArgs(model).create_engine_config().observability_config.trace_steps == "0.25"
    assert EngineArgs(model, trace_steps="off").create_engine_config().observability_config.trace_steps == "off"


def parse(*flags: str) -> AsyncEngineArgs:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser(exit_on_error=False))
    return AsyncEngineArgs.from_cli_args(parser.parse_args(list(flags)))


def test_no_flags_are_the_defaults() -> None:
    assert parse() == AsyncEngineArgs()


def test_every_option_has_a_flag() -> None:
    flags = ["--model", "tiny", "--tokenizer", "elsewhere"]
    for name, value in CHANGED.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", '{"toy_step_time": 0.1}' if isinstance(value, dict) else str(value)]
    assert parse(*flags) == AsyncEngineArgs(model="tiny", tokenizer="elsewhere", **CHANGED)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-model-len", "8k"], "argument --max-model-len: invalid int value: '8k'"),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--additional-config", "[1]"], "argument --additional-config: not a JSON object"),
        (["--additional-config", "{"], "argument --additional-config: not JSON: "),
    ],
)
def test_a_bad_flag_is_named(flags: list[str], words: str) -> None:
    with pytest.raises(argparse.ArgumentError) as caught:
        parse(*flags)
    assert str(caught.value).startswith(words)


def test_a_parser_with_fewer_flags_leaves_the_rest_at_their_defaults() -> None:
    assert EngineArgs.from_cli_args(argparse.Namespace(model="tiny", other=1)) == EngineArgs(model="tiny")
