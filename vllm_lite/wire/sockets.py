"""ZMQ sockets, all made in one way, and the folder their files live in.

Process: front end and engine core. Knows: addresses, socket kinds and that no queue may drop or block (high-water mark 0).
Does not know: what is sent.
Mirrors: vllm/utils/network_utils.py
"""

import errno
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import zmq

from vllm_lite.tracing.process import is_alive

FOLDER = re.compile(r"vllm-lite-(\d+)-\w+")
LONGEST_FOLDER = 95  # a Unix socket's path holds 107 bytes; the file's own name takes the rest


def ipc_folder() -> Path:
    """A new folder for socket files that only this user can enter (mode 0700); the caller removes it.

    Under the system's temporary folder, or under /tmp where that path is too long for a Unix socket. Folders beside it whose
    makers were killed before they could remove them go now.
    """
    prefix = f"vllm-lite-{os.getpid()}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if len(str(folder)) > LONGEST_FOLDER:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    for other in folder.parent.glob("vllm-lite-*"):
        name = FOLDER.fullmatch(other.name)
        if name is not None and not is_alive(int(name[1])) and not _answers(other):
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _answers(folder: Path) -> bool:
    """Whether somebody listens on one of its sockets: the maker may be alive in another process namespace. True as well where
    that cannot be found out: another front end may be removing it."""
    try:
        paths = list(folder.iterdir())
    except OSError:
        return True
    for path in paths:
        with socket.socket(socket.AF_UNIX) as probe:
            if path.is_socket() and probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                return True
    return False


def make_zmq_socket(
    ctx: zmq.Context[Any], address: str, kind: int, bind: bool, *, identity: bytes | None = None, linger: int = 0
) -> zmq.Socket[Any]:
    """A socket of `kind` (zmq.ROUTER, ...), bound or connected to `address`.

    `identity` names a DEALER to its ROUTER. `linger`: ms that closing waits for unsent messages. No high-water mark: a full
    queue would block the sender's event loop (PUSH, DEALER) or drop letters (ROUTER). The bound address, with the port that
    the system chose for port 0, is `socket.getsockopt_string(zmq.LAST_ENDPOINT)`.
    """
    socket: zmq.Socket[Any] = ctx.socket(kind)
    socket.setsockopt(zmq.LINGER, linger)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity)
    try:
        if bind:
            socket.bind(address)
        else:
            socket.connect(address)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise
    return socket
