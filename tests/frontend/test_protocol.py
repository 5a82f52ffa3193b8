"""The interface is whole, and AsyncLLM is the class that implements it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from vllm_lite import AsyncLLM
from vllm_lite.frontend.protocol import EngineClient

SURFACE = [
    "is_running",
    "is_stopped",
    "errored",
    "should_keep_api_server_alive",
    "dead_error",
    "get_kv_event_sources",
    "check_admission",
    "generate",
    "encode",
    "abort",
    "notify_kv_transfer_request_rejected",
    "is_tracing_enabled",
    "do_log_stats",
    "check_health",
    "start_profile",
    "stop_profile",
    "reset_mm_cache",
    "reset_encoder_cache",
    "reset_prefix_cache",
    "sleep",
    "release_kv_cache_memory",
    "wake_up",
    "is_sleeping",
    "add_lora",
    "pause_generation",
    "resume_generation",
    "is_paused",
    "shutdown",
    "scale_elastic_ep",
    "collective_rpc",
    "compute_weight_checksums",
    "handle_fault",
    "get_status",
    "get_supported_tasks",
    "init_weight_transfer_engine",
    "shutdown_weight_transfer_engine",
    "start_weight_update",
    "start_draft_weight_update",
    "update_weights",
    "finish_weight_update",
    "update_weight_version",
    "get_weight_version",
]

ABSTRACT = [
    "is_running",
    "is_stopped",
    "errored",
    "dead_error",
    "generate",
    "encode",
    "abort",
    "notify_kv_transfer_request_rejected",
    "is_tracing_enabled",
    "do_log_stats",
    "check_health",
    "start_profile",
    "stop_profile",
    "reset_mm_cache",
    "reset_encoder_cache",
    "reset_prefix_cache",
    "sleep",
    "release_kv_cache_memory",
    "wake_up",
    "is_sleeping",
    "add_lora",
    "pause_generation",
    "resume_generation",
    "is_paused",
    "shutdown",
]


def test_the_surface_is_vllms() -> None:
    own = [name for name, value in vars(EngineClient).items() if not name.startswith("_") and value is not None]
    assert sorted(own) == sorted(SURFACE)
    assert sorted(EngineClient.__abstractmethods__) == sorted(ABSTRACT)
    assert EngineClient.__annotations__.keys() == {"vllm_config", "model_config", "renderer", "input_processor"}


def test_async_llm_is_an_engine_client() -> None:
    assert issubclass(AsyncLLM, EngineClient)
    assert not inspect.isabstract(AsyncLLM)


@pytest.mark.parametrize("name", ABSTRACT)
def test_overrides_take_the_same_arguments(name: str) -> None:
    declared, override = getattr(EngineClient, name), getattr(AsyncLLM, name)
    if callable(declared):
        wanted = inspect.signature(declared).parameters
        found = inspect.signature(override).parameters
        assert {key: found[key].default for key in wanted} == {key: value.default for key, value in wanted.items()}


class Bare(EngineClient):
    """Nothing but the defaults."""


Bare.__abstractmethods__ = frozenset()

CALLS: dict[str, tuple[Any, ...]] = {
    "collective_rpc": ("method",),
    "compute_weight_checksums": (),
    "finish_weight_update": (),
    "get_status": (),
    "get_supported_tasks": (),
    "get_weight_version": (),
    "handle_fault": (object(),),
    "init_weight_transfer_engine": (object(),),
    "scale_elastic_ep": (2,),
    "shutdown_weight_transfer_engine": (),
    "start_draft_weight_update": (),
    "start_weight_update": (),
    "update_weight_version": ("v2",),
    "update_weights": (object(),),
}


def test_every_other_method_has_a_default() -> None:
    plain = {"should_keep_api_server_alive", "get_kv_event_sources", "check_admission"}
    assert set(SURFACE) - set(ABSTRACT) - plain == set(CALLS)
    client = Bare()  # type: ignore[abstract]
    assert (client.should_keep_api_server_alive, client.get_kv_event_sources()) == (False, {})
    client.check_admission(10**6)


@pytest.mark.parametrize("name", CALLS)
async def test_defaults_say_why_not(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"\w+ \w+ \w+"):
        await getattr(Bare(), name)(*CALLS[name])  # type: ignore[abstract]
