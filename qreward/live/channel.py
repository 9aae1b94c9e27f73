"""The channel of a process: HTTP over a Unix socket, served by a thread of its own, and the orders that an operator gives through it."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from qreward.engine import background
from qreward.engine.batch import BatchWaiter
from qreward.errors import ConfigError, QRewardError, did_you_mean
from qreward.live import processes
from qreward.live.processes import VERSION, Process, directory
from qreward.progress import is_on
from qreward.render import Cell
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.settings.policies import Endpoint
from qreward.transport.connection_settings import Secrets

if TYPE_CHECKING:
    from qreward.runtime import Runtime

VARIABLE = "QREWARD_LIVE"
"""Environment variable. If it is 1, every client of the process is shown; if it is 0, ``qreward run`` is not shown either."""
FRAMES = 12
"""Number of innermost frames that are shown of a blocked event loop."""
CHANGES = 20
"""Number of orders that are kept."""
LONGEST = 65536
"""Maximum number of bytes of an order."""
Action = Literal["pause", "resume", "drain", "restore", "limit", "cancel"]
LIMITS = ("max_concurrency", "rpm", "tpm")
"""Limits of an endpoint that an order may change."""

_log = logging.getLogger("qreward")


class Channel:
    """Shows the clients of this process. ``open_channel`` returns the only one."""

    def __init__(self) -> None:
        self._runtimes: weakref.WeakValueDictionary[int, Runtime] = weakref.WeakValueDictionary()
        self._changes: deque[dict[str, Any]] = deque(maxlen=CHANGES)
        self._clients: dict[str, Any] = {}  # the last snapshots of clients
        self.listeners: list[Callable[[dict[str, Any]], object]] = []
        self._closed = self._troubled = False
        self._lock, self._writing, self._pid = threading.Lock(), threading.Lock(), os.getpid()
        folder = directory()
        self.path, self._file = folder / f"{self._pid}.sock", folder / f"{self._pid}.json"
        self.path.unlink(missing_ok=True)  # of a process that had the same number
        try:
            self._server = _Server(str(self.path), partial(_Handler, self))
        except OSError as error:
            raise ConfigError(f"the socket {str(self.path)!r} cannot be opened: {error}") from None
        self._thread = threading.Thread(target=self._serve, name="qreward-live", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def add(self, runtime: Runtime) -> None:
        """Show a client until it is closed or dropped."""
        with self._lock:
            if runtime not in self._runtimes.values():
                used = [number for number, each in self._runtimes.items() if not each.closed]
                self._runtimes[max(used, default=0) + 1] = runtime

    def runtimes(self) -> dict[int, Runtime]:
        with self._lock:
            return {number: runtime for number, runtime in self._runtimes.items() if not runtime.closed}

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
        due = time.monotonic()
        while not self._closed:
            self._server.timeout = max(0.0, due - time.monotonic())
            self._server.handle_request()
            if (now := time.monotonic()) >= due and not self._closed:
                due = max(due + 1.0, now)
                if not self._clients or any(runtime.engine.drivers() for runtime in self.runtimes().values()):
                    self._write()  # not in a forked process that uses none of its clients

    def _write(self) -> None:
        try:
            with self._writing:
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
        except Exception:  # a full disk, or a fault of a listener, must not end the thread
            if not self._troubled:
                self._troubled = True
                _log.warning("the state of this process could not be written (logged once)", exc_info=True)

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
    path = Path(sys.argv[0] if sys.argv else "")  # without the arguments, which may hold keys
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


def _after_fork(_: object) -> object:
    """Let a forked child open a channel of its own, when it shows a client."""
    global _channel, _opening
    inherited, _channel, _opening = (_channel, _opening), None, threading.Lock()
    if inherited[0] is not None:
        inherited[0]._server.socket.close()  # the socket stays open in the parent
    return inherited


background.watch(Channel, _after_fork)


def show_if_wanted(runtime: Runtime, *, default: bool = False) -> None:
    """Show a client if the environment wants that. A fault is logged, because the client's work does not depend on it."""
    if is_on(VARIABLE) if VARIABLE in os.environ else default:
        try:
            open_channel().add(runtime)
        except ConfigError as error:
            _log.warning("this process is not shown: %s", error)


class LiveView:
    """Shows a client in ``qreward top``, and in a notebook as the output of a cell, until the client is closed or ``close`` is called.

    Attributes:
        path: the socket of this process, for ``curl --unix-socket``.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._channel, self._runtime = open_channel(), weakref.ref(runtime)
        self._channel.add(runtime)
        self.path = self._channel.path
        self._cell: Cell | None = None

    def _ipython_display_(self) -> None:
        self.close()
        self._cell = Cell()
        self._update(self._channel.document())
        self._channel.listeners.append(self._update)

    def _update(self, document: dict[str, Any]) -> None:
        runtime = self._runtime()
        if runtime is None or runtime.closed:  # the cell keeps its last state
            self.close()
        elif self._cell is not None:
            lines = list(processes.lines([Process(document["pid"], "running", document)]))
            self._cell.show(processes.html(lines), "\n".join(processes.plain(lines)))

    def close(self) -> None:
        """Stop updating the output. The client is still shown in ``qreward top``."""
        self._cell = None
        if self._update in self._channel.listeners:
            self._channel.listeners.remove(self._update)

    def __repr__(self) -> str:
        return f"<LiveView {str(self.path)!r}; `qreward top` shows it>"


# orders of an operator


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """An order. Its target is the name of an endpoint or the number of a batch."""

    action: Action
    target: str | None = None
    limits: dict[str, float | None] = {}
    reason: str = ""
    dry_run: bool = False


def steer(runtimes: Mapping[int, Runtime], order: Order) -> list[str]:
    """Carry out an order at each client that it fits. Returns sentences about its effects. Raises ``ConfigError`` if it fits none."""
    act, effects, refused = ACTIONS[order.action], list[str](), ConfigError("this process has no client")
    if order.target is None and order.action in ("drain", "restore", "limit", "cancel"):
        raise ConfigError(f"{order.action} needs the {'number of a batch' if order.action == 'cancel' else 'name of an endpoint'}")
    for runtime in runtimes.values():
        try:
            effects += act(runtime, order)
        except ConfigError as error:
            refused = error
    if not effects:
        raise refused
    return effects


def _sources(runtime: Runtime, order: Order) -> list[Source]:
    return runtime.fleet.sources() if order.target is None else [runtime.fleet.source(order.target)]


def _waiting(runtime: Runtime, pools: Iterable[Pool]) -> int:
    return sum(each.waiting for each in runtime.look.explain(pools))


def _hold(runtime: Runtime, order: Order) -> list[str]:
    sources, why = _sources(runtime, order), ""
    if order.action == "pause":
        why = f"paused: {order.reason}" if order.reason else "paused"
    if not order.dry_run:
        runtime.fleet.hold(order.target, why)
    waiting = _waiting(runtime, {pool for source in sources for pool in source.pools})
    names = ", ".join(source.name for source in sources)
    if why:
        return [f"{names}: nothing new is sent, {sum(source.inflight for source in sources)} in flight are finished, {waiting} wait"]
    return [f"{names}: requests are sent again, {waiting} wait"]


def _mark(runtime: Runtime, order: Order) -> list[str]:
    (source,) = _sources(runtime, order)
    down = order.action == "drain"
    for pool in source.pools if down else ():
        if all(other is source or other.health.marked_unhealthy for other in pool.sources):
            waiting = _waiting(runtime, [pool])
            raise ConfigError(
                f"{source.name!r} is the last endpoint of {pool.name}, so {waiting} waiting requests would fail; pause it instead"
            )
    if not order.dry_run:
        runtime.fleet.mark(source.name, down=down)
    return [f"{source.name}: {f'{source.inflight} in flight are finished, others take the rest' if down else 'back in service'}"]


def _limit(runtime: Runtime, order: Order) -> list[str]:
    (source,) = _sources(runtime, order)
    if not order.limits:
        raise ConfigError("limit needs a limit to change")
    if stray := next((name for name in order.limits if name not in LIMITS), None):
        raise ConfigError(f"there is no limit {stray!r}; {did_you_mean(stray, LIMITS, otherwise='the limits are')}")
    old = cast("Endpoint", source.endpoint)
    limits = old.limits.changed(order.limits)
    if not order.dry_run:
        config, entry = runtime.config, runtime.fleet.entry_of(source.name)
        changed = [each if each is not entry else each.model_copy(update={"limits": limits}) for each in config.endpoints]
        runtime.reload(config.model_copy(update={"endpoints": tuple(changed)}))
    return [f"{source.name}: {name} {_shown(getattr(old.limits, name))} -> {_shown(getattr(limits, name))}" for name in order.limits]


def _shown(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g}"


def _cancel(runtime: Runtime, order: Order) -> list[str]:
    waiters = [waiter for driver in runtime.engine.drivers() for waiter in list(driver.waiters)]
    batches = {str(waiter.number): waiter for waiter in waiters if isinstance(waiter, BatchWaiter)}
    batch = batches.get(cast("str", order.target))
    if batch is None:
        raise ConfigError(f"there is no batch {order.target!r}; the batches are {', '.join(batches) or 'all done'}")
    if not order.dry_run:
        batch.driver.later(partial(batch.cancel, order.reason))
    return [f"batch {order.target} ends: its items without a result get BatchCancelled"]


ACTIONS: Mapping[str, Callable[[Any, Order], list[str]]] = {
    "pause": _hold, "resume": _hold, "drain": _mark, "restore": _mark, "limit": _limit, "cancel": _cancel,
}  # fmt: skip
