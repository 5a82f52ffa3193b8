from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from vllm_lite.config import DeviceConfig, LoadConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm_lite.exceptions import VLLMValidationError


def test_the_whole_configuration_crosses_a_border_unchanged(tiny_model_path: Path) -> None:
    config = VllmConfig(ModelConfig("tiny", model_path=str(tiny_model_path)), additional_config={"toy_step_time": 0.5})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=VllmConfig) == config


def test_a_whole_prompt_must_fit_a_step_where_it_is_not_chunked(tiny_model_path: Path) -> None:
    model = ModelConfig("tiny", model_path=str(tiny_model_path), max_model_len=4000)
    with pytest.raises(
        VLLMValidationError, match=r"^max_num_batched_tokens must be >= max_model_len \(4000\) where .* is off; got 3999$"
    ):
        VllmConfig(model, scheduler_config=SchedulerConfig(max_num_batched_tokens=3999, enable_chunked_prefill=False))
    VllmConfig(model, scheduler_config=SchedulerConfig(max_num_batched_tokens=4000, enable_chunked_prefill=False))
    VllmConfig(model, scheduler_config=SchedulerConfig(max_num_batched_tokens=3999))


def test_load_format_and_device_are_choices() -> None:
    with pytest.raises(VLLMValidationError, match=r"^load_format must be one of 'auto', .*; got 'pickle'$"):
        LoadConfig("pickle")
    with pytest.raises(VLLMValidationError, match=r"^device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'$"):
        DeviceConfig("tpu")
