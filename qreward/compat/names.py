"""The public names of QReward 0.1.7, with the warning or the error for each name. The module of a name is imported when it is used."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

from qreward.errors import page

PAGE = f"see {page('coming-from/qreward-0.1.7')}"

KEPT = {
    "ConfigWatcher": ("compat.functions.OldConfigWatcher", "write qreward.ConfigWatcher(function, file=...), or callback=..."),
    "LoadBalanceStrategy": ("settings.policies.LoadBalanceStrategy", "write from qreward import LoadBalanceStrategy"),
    "ModelRouter": ("compat.proxies.ModelRouter", "write Endpoint(models=[...]), or QRewardClient.register_model_route(...)"),
    "OpenAIChatProxy": ("compat.proxies.OpenAIChatProxy", "write qreward.QRewardClient([qreward.Endpoint(base_url, api_key=...)])"),
    "OpenAIChatProxyManager": (
        "compat.proxies.OpenAIChatProxyManager",
        "write one qreward.QRewardClient([Endpoint(...), ...]), which balances the load",
    ),
    "Priority": ("settings.policies.Priority", "write from qreward import Priority"),
    "PriorityTaskQueue": ("compat.functions.PriorityTaskQueue", "use queue.PriorityQueue of the standard library, or qreward.BatchQueue"),
    "ScheduleConfig": ("compat.functions.OldScheduleConfig", "write qreward.ScheduleConfig(...), with None where 0 switched something off"),
    "ScheduleMetrics": (
        "compat.functions.OldScheduleMetrics",
        "use qreward.ScheduleMetrics, whose fields are tries, ok, retries and latency in seconds",
    ),
    "TelemetryExporter": ("compat.functions.OldTelemetryExporter", "write qreward.TelemetryExporter()"),
    "schedule": ("compat.functions.schedule", ""),
}
"""Old name -> the place of the object inside ``qreward``, and the advice in the warning.

``schedule`` has no advice in this table. Its warning names the new parameters, so ``schedule`` itself warns when it is called.
"""

_INTERNAL = "it was internal to schedule; use @qreward.schedule"
_KEEPALIVE = "connections are kept alive by default; see Endpoint(keepalive=..., http_client=...)"
GONE = {
    "AdaptiveRateLimiter": "use @qreward.schedule(limit_size=..., adaptive_limit=True)",
    "AsyncRunner": _INTERNAL,
    "BaseRunner": _INTERNAL,
    "CircuitBreaker": "use @qreward.schedule(circuit_breaker_threshold=...)",
    "CircuitState": "use stats().open_circuits of a function with @qreward.schedule",
    "ExecutionContext": _INTERNAL,
    "LimiterPool": "use @qreward.schedule(limit_size=..., limit_window=..., key_func=...)",
    "OverloadChecker": "use @qreward.schedule(exception_types=...), which also takes a function of the exception",
    "RequestsTCPKeepAliveAdapter": _KEEPALIVE,
    "RunningTaskPool": "use @qreward.schedule(max_concurrency=...)",
    "SyncRunner": _INTERNAL,
    "aiohttp_keepalive_socket_factory": _KEEPALIVE,
    "httpx_keepalive_socket": _KEEPALIVE,
    "patch_httpx": "remove the call: nothing is patched any more",
    "retry": "use @qreward.schedule(retry_times=..., retry_interval=..., exception_types=...)",
}


def old_names(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module at an old path."""
    return lambda name: old_name(module, name)


def old_name(module: str, name: str) -> Any:
    """Return the object for a name of a 0.1.7 module, and warn at the line of the import."""
    if name in GONE:
        raise ImportError(f"{module}.{name} was part of QReward 0.1.7 and was dropped: {GONE[name]}; {PAGE}")
    if name not in KEPT:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place, advice = KEPT[name]
    asked_by = sys._getframe(2).f_globals.get("__name__", "")
    if advice and "importlib" not in asked_by:  # an import from a package looks up the name twice; the first lookup is by importlib
        warnings.warn(f"{module}.{name} is deprecated: {advice}; {PAGE}", DeprecationWarning, stacklevel=3)
    home, _, attribute = place.rpartition(".")
    return getattr(importlib.import_module(f"qreward.{home}"), attribute)
