"""Sockets without limits, in a folder that is the user's alone."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from vllm_lite.wire.sockets import ipc_folder, make_zmq_socket


def test_the_folder_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = ipc_folder(), ipc_folder()
    assert first != second
    assert first.parent == tmp_path
    assert first.stat().st_mode & 0o777 == 0o700


def test_folders_of_the_dead_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, elsewhere, mine = (tmp_path / name for name in (f"vllm-lite-{gone.pid}-a", f"vllm-lite-{gone.pid}-b", "vllm-lite-x"))
    for folder in (dead, elsewhere, mine):
        folder.mkdir()
    with socket.socket(socket.AF_UNIX) as refuses, socket.socket(socket.AF_UNIX) as answers:
        refuses.bind(str(dead / "s"))
        answers.bind(str(elsewhere / "s"))  # of a process that has its number in another namespace
        answers.listen()
        first, second = ipc_folder(), ipc_folder()
    assert first.name.startswith(f"vllm-lite-{os.getpid()}-")
    assert set(tmp_path.iterdir()) == {elsewhere, mine, first, second}


def test_a_folder_that_another_front_end_removes_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = tmp_path / "vllm-lite-1-a"
    theirs.mkdir()
    monkeypatch.setattr("vllm_lite.wire.sockets.is_alive", lambda _: shutil.rmtree(theirs, ignore_errors=True))
    monkeypatch.setattr(Path, "is_dir", lambda _: True)  # as it was when pathlib looked first
    assert ipc_folder().parent == tmp_path


def test_a_path_that_no_socket_could_have_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = ipc_folder()
    assert folder.parent == Path("/tmp")
    assert list(deep.iterdir()) == []
    folder.rmdir()


def test_a_router_knows_a_dealer_by_its_identity(tmp_path: Path) -> None:
    with zmq.Context() as ctx:
        address = f"ipc://{tmp_path}/s"
        router = make_zmq_socket(ctx, address, zmq.ROUTER, bind=True)
        dealer = make_zmq_socket(ctx, address, zmq.DEALER, bind=False, identity=b"\x07\x00", linger=500)
        dealer.send(b"hello")
        assert router.recv_multipart() == [b"\x07\x00", b"hello"]
        assert (router.getsockopt(zmq.SNDHWM), router.getsockopt(zmq.RCVHWM), router.getsockopt(zmq.LINGER)) == (0, 0, 0)
        assert dealer.getsockopt(zmq.LINGER) == 500
        router.close()
        dealer.close(linger=0)


def test_a_port_of_the_systems_choice_can_be_read_back() -> None:
    with zmq.Context() as ctx:
        socket = make_zmq_socket(ctx, "tcp://127.0.0.1:0", zmq.PULL, bind=True)
        assert int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1]) > 0
        socket.close()


def test_an_address_that_cannot_be_bound_leaves_no_socket(tmp_path: Path) -> None:
    with zmq.Context() as ctx, pytest.raises(zmq.ZMQError):
        make_zmq_socket(ctx, f"ipc://{tmp_path}/missing/s", zmq.PULL, bind=True)
