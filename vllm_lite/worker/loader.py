"""From a model's folder to a module ready to run: `load_weights` reads, `finalize` shapes what was read for this device.

Process: worker. Knows: transformers' model classes, safetensors folders, dummy weights. Does not know: the KV cache, the batch.
The two steps are apart because the second must be repeated whenever weights are replaced.
Mirrors: vllm/model_executor/model_loader/
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from vllm_lite.config import ModelConfig
from vllm_lite.exceptions import UnsupportedModelError
from vllm_lite.worker.attention.interface import ATTENTION_NAME
from vllm_lite.worker.device import select_dtype
from vllm_lite.worker.direct_calls import call_directly
from vllm_lite.worker.norms import replace_norms
from vllm_lite.worker.prepack import PrepackedLinear, prepack_linears


def read_config(model_config: ModelConfig) -> Any:
    """transformers' configuration of the model. Raises UnsupportedModelError for a kind it does not know."""
    try:
        return AutoConfig.from_pretrained(model_config.model_path, local_files_only=True)
    except (KeyError, ValueError) as error:
        kind = model_config.hf_config.get("model_type")
        raise UnsupportedModelError(f"the installed transformers knows no model type {kind!r}: upgrade it") from error


def load_weights(model_config: ModelConfig, config: Any, load_format: str, device: torch.device) -> torch.nn.Module:
    """The model on `device` with its weights, in evaluation mode and with paged attention plugged in.

    "dummy" makes random weights from the engine's seed. Raises UnsupportedModelError where the folder's weights are missing, of
    another format or not the model's.
    """
    dtype = select_dtype(model_config.dtype, config.dtype, device)
    options: dict[str, Any] = {"config": config, "dtype": dtype, "attn_implementation": ATTENTION_NAME}
    if dtype == torch.float64:  # the default, a grouped matrix product, has no such kernel
        options["experts_implementation"] = "batched_mm"
    try:
        if load_format == "dummy":
            return _random_model(model_config.seed, device, options)
        _check_folder(Path(model_config.model_path))
        with _progress_bar():
            model, report = AutoModelForCausalLM.from_pretrained(
                model_config.model_path,
                **options,
                device_map=None if device.type == "cpu" else device,
                local_files_only=True,
                output_loading_info=True,
            )
    except ValueError as error:
        raise UnsupportedModelError(
            f"{config.model_type} is not a text generation model that transformers can load: {error}"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers fills them with random numbers and goes on
        raise UnsupportedModelError(
            f"{model_config.model_path} lacks {len(missing)} weights of the model, such as {missing[0]}"
        )
    module: torch.nn.Module = model.eval()
    return module


def finalize(model: torch.nn.Module, device: torch.device, *, compiled: bool = False) -> None:
    """Reshape the weights for speed on `device`. To be called once after `load_weights`, before the first forward pass."""
    model.requires_grad_(False)
    if device.type == "cpu":
        prepack_linears(model, compiled=compiled)
        if not compiled:  # a compiler makes one kernel of a norm itself
            replace_norms(model)
            call_directly(model)


def weights_bytes(model: torch.nn.Module) -> int:
    """Bytes of all weights, shared ones counted once, prepacked ones as they are kept."""
    packed = sum(module.packed_bytes for module in model.modules() if isinstance(module, PrepackedLinear))
    return packed + sum(parameter.nbytes for parameter in model.parameters())


def _random_model(seed: int, device: torch.device, options: dict[str, Any]) -> torch.nn.Module:
    with torch.random.fork_rng(), device:
        torch.manual_seed(seed)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(**options)
    return model.eval()


def _check_folder(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    if gguf := next(folder.glob("*.gguf"), None):
        raise UnsupportedModelError(
            f"{folder} holds GGUF weights: convert them once with "
            f"'{Path(sys.executable).name} -m vllm_lite.worker.convert_gguf {gguf} OUT_FOLDER' and give --model OUT_FOLDER"
        )
    raise UnsupportedModelError(f"{folder} has no *.safetensors: give --model a folder with weights, or --load-format dummy")


@contextlib.contextmanager
def _progress_bar() -> Iterator[None]:
    """transformers' progress in one bar that leaves no trace, on a terminal only."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:

        def track(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return progress.track(args[0], description="loading weights") if args else factory(*args, **kwargs)

        before = transformers_logging.set_tqdm_hook(track)
        try:
            yield
        finally:
            transformers_logging.set_tqdm_hook(before)
