"""The channel of a process: HTTP over a Unix socket, served by a thread of its own."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import socketserver
import struct
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from qreward.engine import background
from qreward.errors import ConfigError, QRewardError
from qreward.live.directory import VERSION, directory
from qreward.live.steer import Order, steer
from qreward.progress import is_on
from qreward.transport.redaction import Secrets

VARIABLE = "QREWARD_LIVE"
"""Environment variable. If it is 1, every client of the process is shown; if it is 0, ``qreward run`` is not shown either."""
FRAMES = 12
"""Number of innermost frames that are shown of a blocked event loop."""
CHANGES = 20
"""Number of orders that are kept."""
LONGEST = 65536
"""Maximum number of bytes of an order."""

_log = logging.getLogger("qreward")


class Channel:
    """Shows the clients of this process. ``open_channel`` returns the only one."""

    def __init__(self) -> None:
        self._runtimes: dict[int, weakref.ref[Any]] = {}
        self._changes: deque[dict[str, Any]] = deque(maxlen=CHANGES)
        self._clients: dict[str, Any] = {}  # the last snapshots of clients
        self.listeners: list[Callable[[dict[str, Any]], object]] = []
        self._begin()
        background.watch(self, Channel._begin_in_child)
        atexit.register(self.close)

    def _begin(self) -> None:
        self._pid, self._closed, self._troubled = os.getpid(), False, False
        self._lock, self._writing = threading.Lock(), threading.Lock()
        folder = directory()
        self.path, self._file = folder / f"{self._pid}.sock", folder / f"{self._pid}.json"
        self.path.unlink(missing_ok=True)  # of a process that had the same number
        try:
            self._server = _Server(str(self.path), partial(_Handler, self))
        except OSError as error:
            raise ConfigError(f"the socket {str(self.path)!r} cannot be opened: {error}") from None
        self._thread = threading.Thread(target=self._serve, name="qreward-live", daemon=True)
        self._thread.start()

    def _begin_in_child(self) -> object:
        global _opening
        inherited, _opening = (self._server, self._lock, self._writing, _opening), threading.Lock()
        self._server.socket.close()  # the parent's socket stays open in the parent
        self.listeners = []
        try:
            self._begin()
        except ConfigError as error:
            _log.warning("this process is not shown: %s", error)
        return inherited

    def add(self, runtime: Any) -> None:
        """Show a client until it is closed or dropped."""
        with self._lock:
            if not any(known() is runtime for known in self._runtimes.values()):
                self._runtimes[max(self._runtimes, default=0) + 1] = weakref.ref(runtime)

    def runtimes(self) -> dict[int, Any]:
        with self._lock:
            found = {number: known() for number, known in self._runtimes.items()}
            self._runtimes = {number: self._runtimes[number] for number, known in found.items() if known is not None and not known.closed}
            return {number: found[number] for number in self._runtimes}

    # what is known

    def document(self) -> dict[str, Any]:
        """Return what is known about this process. Times are in seconds; ``at`` and ``started`` are those of the wall clock."""
        clients = {str(number): runtime.look.take() for number, runtime in self.runtimes().items()}
        late = {loop.thread: loop.lag for client in clients.values() for loop in client.loops if loop.blocked}
        return {
            "version": VERSION,
            "pid": self._pid,
            "program": _program(),
            "started": _STARTED,
            "at": time.time(),
            "ended": self._closed,
            "clients": {number: client.model_dump(mode="json") for number, client in clients.items()},
            "blocked": [{"seconds": lag, "stack": list(_stack_of(thread))} for thread, lag in late.items()],
            "changes": list(self._changes),
        }

    def order(self, body: bytes) -> list[str]:
        """Carry out an order. Returns what it does. Raises ``ConfigError``."""
        try:
            order = msgspec.json.decode(body, type=Order)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"this is not an order: {error}") from None
        order.reason = Secrets().hide(order.reason)
        effects = steer(self.runtimes(), order)
        if not order.dry_run:
            self._changes.append({"at": time.time(), **msgspec.to_builtins(order), "effects": effects})
            _log.warning("%s (%s): %s", order.action, order.reason or "no reason was given", "; ".join(effects))
        return effects

    # the thread

    def _serve(self) -> None:
        due, server = time.monotonic(), self._server
        while not self._closed and server is self._server:
            server.timeout = max(0.0, due - time.monotonic())
            server.handle_request()
            if (now := time.monotonic()) >= due and not self._closed:
                due = max(due + 1.0, now)
                if not self._clients or any(runtime.engine.drivers() for runtime in self.runtimes().values()):
                    self._write()  # not in a forked process that uses none of its clients

    def _write(self) -> None:
        try:
            with self._writing:
                self._write_now()
        except Exception:  # a full disk, or a fault of a listener, must not end the thread
            if not self._troubled:
                self._troubled = True
                _log.warning("the state of this process could not be written (logged once)", exc_info=True)

    def _write_now(self) -> None:
        document = self.document()
        if document["clients"]:
            self._clients = document["clients"]
        elif self._closed:  # a program that fails closes its clients first
            document["clients"] = self._clients
        new = self._file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(document))
        new.replace(self._file)
        for listener in list(self.listeners):
            listener(document)

    def close(self) -> None:
        """Write the last document and remove the socket."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as waker:
            waker.connect(str(self.path))
        self._thread.join(1.0)
        self._write()
        self.path.unlink(missing_ok=True)
        atexit.unregister(self.close)
        self._server.server_close()


def _program() -> str:
    """Return the name of the program, without its arguments, which may hold keys."""
    path = Path(sys.argv[0] if sys.argv else "")
    return (path.parent.name if path.name == "__main__.py" else path.name) or "python"  # ``python -m package``


def _stack_of(thread: int) -> Iterator[str]:
    """Yield the innermost frames of a thread, without asyncio's. Source lines are left out, because they may hold secrets."""
    frames = traceback.walk_stack(sys._current_frames().get(thread))
    for frame, line in islice((each for each in frames if not each[0].f_globals.get("__name__", "").startswith("asyncio")), FRAMES):
        yield f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"


def peer_user(connection: socket.socket) -> int:
    """Return the number of the user at the other end. Where the system does not tell, only the directory protects the socket."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.geteuid()
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - as in the base class
        return peer_user(request) == os.geteuid()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a request to the live channel failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = LONGEST  # one write instead of two, because a busy event loop delays each by Python's switch interval
    timeout = 60.0

    def __init__(self, channel: Channel, *arguments: Any) -> None:
        self._channel = channel
        super().__init__(*arguments)

    def do_GET(self) -> None:
        if self.path == "/snapshot":
            self._answer(200, self._channel.document())
        else:
            self._answer(404, {"error": "there are GET /snapshot and POST /ctl"})

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length", "")
        if self.path != "/ctl" or not size.isdecimal() or int(size) > LONGEST:
            self.close_connection = True
            self._answer(404, {"error": f"POST /ctl takes JSON of at most {LONGEST} bytes"})
            return
        try:
            self._answer(200, {"effects": self._channel.order(self.rfile.read(int(size)))})
        except QRewardError as error:
            self._answer(400, {"error": str(error)})

    def _answer(self, status: int, content: object) -> None:
        body = msgspec.json.encode(content) + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


_STARTED = time.time()
_opening = threading.Lock()
_channel: Channel | None = None


def open_channel() -> Channel:
    """Return the channel of this process, opened if needed. Raises ``ConfigError`` if that is impossible."""
    global _channel  # noqa: PLW0603 - one in a process
    if not hasattr(socketserver, "UnixStreamServer"):
        raise ConfigError("the live channel needs Unix sockets, which this system does not have")
    with _opening:
        if _channel is None:
            _channel = Channel()
        return _channel


def show_if_wanted(runtime: Any, *, default: bool = False) -> None:
    """Show a client if the environment wants that. A fault is logged, because the client's work does not depend on it."""
    if is_on(VARIABLE) if VARIABLE in os.environ else default:
        try:
            open_channel().add(runtime)
        except ConfigError as error:
            _log.warning("this process is not shown: %s", error)
