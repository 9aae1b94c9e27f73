"""Proxies in turn, by weight, without those marked as unhealthy, and none at all."""

from qreward.client import LoadBalanceStrategy, OpenAIChatProxy, OpenAIChatProxyManager


def proxy(name: str) -> OpenAIChatProxy:
    return OpenAIChatProxy(base_url=f"http://{name}.example.com/v1", api_key="sk-placeholder")


def selected(manager: OpenAIChatProxyManager, times: int) -> list[str]:
    keys = {id(each): key for key, each in manager.proxies().items()}
    return [keys[id(manager.select_proxy())] for _ in range(times)]


def main() -> None:
    manager = OpenAIChatProxyManager(strategy=LoadBalanceStrategy.ROUND_ROBIN)
    for name in ("east", "west", "north"):
        manager.add_proxy(key=name, proxy=proxy(name))
    print(selected(manager, 6))
    manager.mark_unhealthy("east")
    print(list(manager.healthy_proxies()), sorted(selected(manager, 4)))
    manager.mark_healthy("east")
    print(list(manager.healthy_proxies()))

    weighted = OpenAIChatProxyManager(strategy=LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN)
    weighted.add_proxy(key="primary", proxy=proxy("primary"), weight=3)
    weighted.add_proxy(key="secondary", proxy=proxy("secondary"), weight=1)
    chosen = selected(weighted, 8)
    print(chosen.count("primary"), chosen.count("secondary"))

    chained = (
        OpenAIChatProxyManager(strategy=LoadBalanceStrategy.LEAST_CONNECTIONS)
        .add_proxy_with_default("a", "http://a.example.com/v1", "sk-aaa")
        .add_proxies_with_default({"b": ("http://b.example.com/v1", "sk-bbb")})
    )
    print(list(chained.proxies()), chained.exist_proxy("a"), chained.exist_proxy("c"))

    lonely = OpenAIChatProxyManager()
    lonely.add_proxy(key="only", proxy=proxy("only"))
    lonely.mark_unhealthy("only")
    try:
        lonely.select_proxy()
    except RuntimeError:
        print("no healthy proxy")


if __name__ == "__main__":
    main()
