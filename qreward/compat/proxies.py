"""``OpenAIChatProxy``, ``OpenAIChatProxyManager`` and ``ModelRouter`` of QReward 0.1.7."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property, partial, partialmethod
from typing import Any, Self

from aiolimiter import AsyncLimiter

from qreward.client import QRewardClient
from qreward.compat import PAGE
from qreward.errors import ConfigError
from qreward.settings.policies import Endpoint, Limits, LoadBalanceStrategy, Timeouts
from qreward.streaming import BatchStream

_OWN_CLIENT = "pass your own client: Endpoint(base_url, http_client=httpx.AsyncClient(event_hooks=...))"
REPLACED = {  # parameter that a proxy does not take any more -> what to do instead
    "chat_process_fuc": "write chat_process_func",
    "error_process_fuc": "write error_process_func",
    "httpx_request_hook": _OWN_CLIENT,
    "httpx_response_hook": _OWN_CLIENT,
    "is_hack_embedding_method": "describe a server whose responses are not OpenAI's with qreward.register_kind",
}


def _timeouts(timeout: Any) -> Timeouts:
    """Return the time limits for seconds, an ``httpx.Timeout`` or None."""
    return Timeouts(attempt=getattr(timeout, "read", timeout) or 60.0)


class OpenAIChatProxy:
    """One OpenAI-compatible endpoint with the parameters, the defaults and the results of 0.1.7."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        debug: bool = False,
        max_concurrent: int = 64,
        chat_process_func: Callable[[Any], Any] | None = None,
        error_process_func: Callable[[Any], Any] | None = None,
        timeout: Any = None,
        rate_limiter_bucket_size: float = 50.0,
        rate_limiter_bucket_period: float = 1.0,
        verify_ssl: bool = True,
        **replaced: Any,
    ) -> None:
        for name in replaced:
            raise ConfigError(f"OpenAIChatProxy({name}=...) is not possible: {REPLACED.get(name, 'it never was a parameter')}; {PAGE}")
        if debug:
            text = "OpenAIChatProxy(debug=True) has no effect: pass observers=[...] to QRewardClient"
            warnings.warn(f"{text}; {PAGE}", DeprecationWarning, stacklevel=2)
        self._endpoint: dict[str, Any] = {"base_url": base_url, "api_key": api_key or self.get_openai_key(), "verify": verify_ssl}
        self._rate = rate_limiter_bucket_size, rate_limiter_bucket_period
        self._limiter: tuple[asyncio.AbstractEventLoop, AsyncLimiter] | None = None
        self._max_concurrent = max_concurrent
        self._timeouts = _timeouts(timeout)
        self._defaults = {"temperature": 0.0}
        self._process_chat = chat_process_func
        self._process_error = error_process_func

    @cached_property
    def client(self) -> QRewardClient:
        """The client of the proxy. It is created on first use, with the settings that the proxy has then."""
        limits = Limits(max_concurrency=self._max_concurrent)
        return QRewardClient([Endpoint(**self._endpoint, limits=limits, timeouts=self._timeouts)])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    def with_max_concurrent(self, max_concurrent: int) -> Self:
        self._max_concurrent = max_concurrent
        return self

    def with_temperature(self, temperature: float) -> Self:
        self._defaults["temperature"] = temperature
        return self

    def with_timeout(self, timeout: Any) -> Self:
        self._timeouts = _timeouts(timeout)
        if "client" in vars(self):
            config = self.client.config
            changed = [each.model_copy(update={"timeouts": self._timeouts}) for each in config.endpoints]
            self.client.reload(config.model_copy(update={"endpoints": tuple(changed)}))
        return self

    def with_error_process_func(self, error_process_func: Callable[[Any], Any]) -> Self:
        self._process_error = error_process_func
        return self

    def with_error_process_fuc(self, error_process_fuc: Callable[[Any], Any]) -> Self:
        text = "with_error_process_fuc is deprecated, use with_error_process_func instead"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return self.with_error_process_func(error_process_fuc)

    @staticmethod
    def get_openai_key() -> str | None:
        return os.getenv("OPENAI_API_KEY")

    async def _bucket(self) -> None:
        """Wait for the rate limit of 0.1.7, a leaky bucket: ``size`` requests at once, and then ``size`` per ``period`` seconds."""
        loop = asyncio.get_running_loop()
        if self._limiter is None or self._limiter[0] is not loop:  # a limiter belongs to one loop
            self._limiter = loop, AsyncLimiter(*self._rate)
        await self._limiter[1].acquire()

    async def _paced(self, items: Any) -> AsyncIterator[Any]:
        for item in items:
            await self._bucket()
            yield item

    def _content(self, completion: Any) -> Any:
        if self._process_chat is not None:
            completion = self._process_chat(completion)
        return completion.choices[0].message.content

    async def chat_completion(self, messages: Any, model: str, **options: Any) -> Any:
        await self._bucket()
        return self._content(await self.client.chat_completion(messages, model, **{**self._defaults, **options}))

    async def batch_chat_completion(self, batch_messages: Any, model: str, **options: Any) -> list[Any]:
        """Return the texts in the order of the input. For a failed item, return its exception or the result of ``error_process_func``."""
        batch = await self.client.batch_chat_completion(self._paced(batch_messages), model, **{**self._defaults, **options})
        outcomes = []
        for result in batch:
            try:
                outcomes.append(self._content(result.value))
            except Exception as error:
                outcomes.append(error if self._process_error is None else self._process_error(error))
        return outcomes

    async def stream_chat_completion(self, messages: Any, model: str, **options: Any) -> AsyncIterator[str]:
        await self._bucket()
        async with self.client.stream_chat_completion(messages, model, **{**self._defaults, **options}) as stream:
            async for token in stream:
                yield token

    def batch_stream_chat_completion(self, batch_messages: Any, model: str, **options: Any) -> BatchStream:
        return self.client.batch_stream_chat_completion(self._paced(batch_messages), model, **{**self._defaults, **options})

    async def embeddings(self, *, sentences: Any = None, model: str | None = None, **options: Any) -> list[Any]:
        return (await self.client.embeddings(sentences, model or "", **options)).data

    async def batch_embeddings(
        self, *, batch_sentences: Sequence[Any], model: str | None = None, extra_bodies: Sequence[Any] | None = None, **options: Any
    ) -> list[list[Any]]:
        bodies = extra_bodies or [None] * len(batch_sentences)
        pairs = zip(batch_sentences, bodies, strict=True)
        calls = [self.embeddings(sentences=item, model=model, extra_body=body, **options) for item, body in pairs]
        return await asyncio.gather(*calls)


@dataclass
class ProxyGroup:
    """A group of proxies that take turns. With weights, a proxy of larger weight is selected more often."""

    pattern: str = ""
    strategy: LoadBalanceStrategy = LoadBalanceStrategy.ROUND_ROBIN
    proxies: dict[str, OpenAIChatProxy] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    healthy_keys: set[str] = field(default_factory=set)
    _credit: Counter[str] = field(default_factory=Counter, repr=False)

    def add(self, key: str, proxy: OpenAIChatProxy, weight: int = 1) -> None:
        if key in self.proxies:
            raise ConfigError(f"a proxy with the key {key!r} exists already; use another key")
        self.proxies[key] = proxy
        self.weights[key] = max(1, weight)
        self.healthy_keys.add(key)

    def mark(self, key: str, *, healthy: bool) -> None:
        if key not in self.proxies:
            raise KeyError(f"there is no proxy with the key {key!r}")
        (self.healthy_keys.add if healthy else self.healthy_keys.discard)(key)

    def select(self) -> OpenAIChatProxy:
        """Return the next proxy, by nginx's smooth weighted round robin. Raises ``RuntimeError`` if no proxy is healthy."""
        weighted = self.strategy is LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN
        shares = {key: self.weights[key] if weighted else 1 for key in self.proxies if key in self.healthy_keys}
        if not shares:
            raise RuntimeError(f"no healthy proxy{f' for {self.pattern!r}' if self.pattern else ''}; mark one with mark_healthy()")
        self._credit.update(shares)
        best = max(shares, key=self._credit.__getitem__)
        self._credit[best] -= sum(shares.values())
        return self.proxies[best]


class ModelRouter:
    def __init__(self) -> None:
        self._groups: dict[str, ProxyGroup] = {}

    def register(
        self,
        pattern: str,
        proxy_map: Mapping[str, OpenAIChatProxy],
        weights: Mapping[str, int] | None = None,
        strategy: LoadBalanceStrategy = LoadBalanceStrategy.ROUND_ROBIN,
    ) -> None:
        self._groups[pattern] = group = ProxyGroup(pattern, strategy)
        for key, proxy in proxy_map.items():
            group.add(key, proxy, (weights or {}).get(key, 1))

    def resolve(self, model: str) -> ProxyGroup | None:
        return self._groups.get(model) or next((group for group in self._groups.values() if fnmatch(model, group.pattern)), None)

    def select_from_group(self, group: ProxyGroup) -> OpenAIChatProxy:
        return group.select()

    def _mark(self, pattern: str, key: str, *, healthy: bool) -> None:
        """Mark a proxy. Does nothing if the pattern or the key is unknown."""
        if pattern in self._groups and key in self._groups[pattern].proxies:
            self._groups[pattern].mark(key, healthy=healthy)

    mark_unhealthy = partialmethod(_mark, healthy=False)
    mark_healthy = partialmethod(_mark, healthy=True)

    def list_routes(self) -> list[dict[str, Any]]:
        return [
            {
                "pattern": group.pattern,
                "strategy": group.strategy.value,
                "proxy_count": len(group.proxies),
                "healthy_count": len(group.healthy_keys),
                "keys": list(group.proxies),
            }
            for group in self._groups.values()
        ]


class OpenAIChatProxyManager:
    """Holds proxies by key. ``select_proxy`` returns a proxy, and the caller sends requests to this proxy."""

    def __init__(self, strategy: LoadBalanceStrategy = LoadBalanceStrategy.ROUND_ROBIN) -> None:
        self._group = ProxyGroup(strategy=strategy)
        self._router = ModelRouter()
        self.register_model_route, self.list_routes = self._router.register, self._router.list_routes
        self.mark_unhealthy, self.mark_healthy = partial(self._group.mark, healthy=False), partial(self._group.mark, healthy=True)

    def add_proxy(self, key: str, proxy: OpenAIChatProxy, weight: int = 1) -> Self:
        self._group.add(key, proxy, weight)
        return self

    def add_proxy_with_default(self, key: str, base_url: str, api_key: str) -> Self:
        return self.add_proxy(key, OpenAIChatProxy(base_url, api_key=api_key))

    def add_proxies_with_default(self, proxies: Mapping[str, tuple[str, str]]) -> Self:
        for key, (base_url, api_key) in proxies.items():
            self.add_proxy_with_default(key, base_url, api_key)
        return self

    def proxy(self, key: str) -> OpenAIChatProxy:
        """Return the proxy with this key. Raises ``KeyError`` if no proxy has this key."""
        return self._group.proxies[key]

    def exist_proxy(self, key: str) -> bool:
        return key in self._group.proxies

    def proxies(self) -> dict[str, OpenAIChatProxy]:
        return dict(self._group.proxies)

    def healthy_proxies(self) -> dict[str, OpenAIChatProxy]:
        return {key: proxy for key, proxy in self._group.proxies.items() if key in self._group.healthy_keys}

    def select_proxy(self, model: str | None = None) -> OpenAIChatProxy:
        """Return the next proxy of the model's route, or of all proxies if the model has no route."""
        return ((model and self._router.resolve(model)) or self._group).select()

    async def batch_stream_chat_completion(self, batch_messages: Any, model: str, **options: Any) -> AsyncIterator[tuple[int, str]]:
        async for item in self.select_proxy(model).batch_stream_chat_completion(batch_messages, model, **options):
            yield item

    async def remove_proxy(self, key: str) -> None:
        self._group.healthy_keys.discard(key)
        if (proxy := self._group.proxies.pop(key, None)) is not None:
            await proxy.client.aclose()

    async def close(self) -> None:
        for key in list(self._group.proxies):
            await self.remove_proxy(key)
