"""GGUF file to a folder in the Hugging Face layout: `python -m vllm_lite.worker.convert_gguf GGUF_FILE OUT_FOLDER`.

Process: a child of whoever resolves a model's name, gone once the folder is there. Knows: transformers' GGUF reader, which
unpacks weights to bfloat16 and rebuilds config and tokenizer. Does not know: where models are cached, or which one this is.
Mirrors: nothing in vLLM (its GGUF support is a package of its own).
"""

import argparse
import contextlib
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


def convert(gguf_file: Path, out_folder: Path, on_tensor: Callable[[int], None] = lambda total: None) -> None:
    """Write config.json, generation_config.json, tokenizer files and model.safetensors (bfloat16) into `out_folder`.

    They are made in a folder beside it and moved at the end, config.json last: an interrupted conversion leaves nothing that
    looks like a model. `on_tensor` is called with the number of all tensors each time one is unpacked. Raises what the readers
    raise (OSError, ValueError, ...) where the file cannot be read or holds an architecture that transformers cannot rebuild.
    """
    out_folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out_folder.name}-", dir=out_folder.parent) as made:
        with _header_parsed_once(gguf_file, on_tensor):
            _write(gguf_file, Path(made))
        out_folder.mkdir(exist_ok=True)
        for file in sorted(Path(made).iterdir(), key=lambda path: path.name == "config.json"):
            shutil.move(file, out_folder / file.name)


@contextlib.contextmanager
def _header_parsed_once(gguf_file: Path, on_tensor: Callable[[int], None]) -> Iterator[None]:
    """Parse the file's header and the table of tensor names once. transformers would do it again for each of config, weights,
    tokenizer and tensor, which is half of the time; it looks these functions up in `gguf` whenever it needs one."""
    import gguf

    reader, unpack = functools.lru_cache(gguf.GGUFReader), gguf.dequantize
    total = len(reader(str(gguf_file)).tensors)

    def dequantize(data: Any, kind: Any) -> Any:
        on_tensor(total)
        return unpack(data, kind)

    names = functools.lru_cache(gguf.get_tensor_name_map)
    with mock.patch.multiple(gguf, GGUFReader=reader, get_tensor_name_map=names, dequantize=dequantize):
        yield


def _write(gguf_file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name, "local_files_only": True}
    unpack = GgufConfig(gguf_file=gguf_file.name, dequantize=True)  # else it stays quantised, and save_pretrained refuses
    model = AutoModelForCausalLM.from_pretrained(**where, quantization_config=unpack, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


def main(arguments: list[str] | None = None) -> int:
    """Convert, with a progress bar where standard error is a terminal. 0, or 1 after a sentence that says what failed."""
    parser = argparse.ArgumentParser(prog="python -m vllm_lite.worker.convert_gguf", description="GGUF to safetensors")
    parser.add_argument("gguf_file", type=Path)
    parser.add_argument("out_folder", type=Path)
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    name = options.gguf_file.name
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"reading {name}", total=None)  # the header alone takes seconds

        def unpacked(total: int) -> None:
            progress.update(task, description=f"unpacking {name}", total=total, advance=1)

        try:
            convert(options.gguf_file, options.out_folder, unpacked)
        except Exception as error:  # whatever the readers of a damaged or unknown file may raise
            console.print(f"{options.gguf_file} cannot be converted: {type(error).__name__}: {error}", soft_wrap=True)
            return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")  # transformers would draw bars of its own, terminal or not
    sys.exit(main())
