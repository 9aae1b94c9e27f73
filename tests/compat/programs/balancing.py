"""Proxies in turn, by weight, by model, without those marked as unhealthy, and none at all."""

from qreward.client import LoadBalanceStrategy, OpenAIChatProxy, OpenAIChatProxyManager
from qreward.client.model_router import ModelRouter


def proxies(*names: str) -> dict[str, OpenAIChatProxy]:
    return {name: OpenAIChatProxy(base_url=f"http://{name}.example.com/v1", api_key="sk-placeholder") for name in names}


def selected(select, among: dict[str, OpenAIChatProxy], times: int) -> list[str]:
    keys = {id(each): key for key, each in among.items()}
    return [keys[id(select())] for _ in range(times)]


def by_a_manager() -> None:
    manager = OpenAIChatProxyManager(strategy=LoadBalanceStrategy.ROUND_ROBIN)
    for name, each in proxies("east", "west", "north").items():
        manager.add_proxy(key=name, proxy=each)
    print(selected(manager.select_proxy, manager.proxies(), 6))
    manager.mark_unhealthy("east")
    print(list(manager.healthy_proxies()), sorted(selected(manager.select_proxy, manager.proxies(), 4)))
    manager.mark_healthy("east")
    print(list(manager.healthy_proxies()))

    weighted = OpenAIChatProxyManager(strategy=LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN)
    for name, weight in (("primary", 3), ("secondary", 1)):
        weighted.add_proxy(key=name, proxy=proxies(name)[name], weight=weight)
    chosen = selected(weighted.select_proxy, weighted.proxies(), 8)
    print(chosen.count("primary"), chosen.count("secondary"))

    chained = (
        OpenAIChatProxyManager(strategy=LoadBalanceStrategy.LEAST_CONNECTIONS)
        .add_proxy_with_default("a", "http://a.example.com/v1", "sk-aaa")
        .add_proxies_with_default({"b": ("http://b.example.com/v1", "sk-bbb")})
    )
    print(list(chained.proxies()), chained.exist_proxy("a"), chained.exist_proxy("c"))
    chained.mark_unhealthy("a")
    chained.mark_unhealthy("b")
    try:
        chained.select_proxy()
    except RuntimeError:
        print("no healthy proxy")


def by_a_router() -> None:
    router = ModelRouter()
    router.register("gpt-*", proxy_map=proxies("standard"))
    router.register("gpt-4", proxy_map=proxies("premium", "other"), weights={"premium": 3, "other": 1},
                    strategy=LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN)  # fmt: skip
    for model in ("gpt-4", "gpt-3.5-turbo", "llama-3"):
        group = router.resolve(model)
        print(model, group and (group.pattern, list(group.proxies)))
    group = router.resolve("gpt-4")
    chosen = selected(lambda: router.select_from_group(group), group.proxies, 8)
    print(chosen.count("premium"), chosen.count("other"))
    router.mark_unhealthy("gpt-4", "premium")
    print(group.healthy_keys, selected(lambda: router.select_from_group(group), group.proxies, 2))
    router.mark_healthy("gpt-4", "premium")
    print(sorted(group.healthy_keys))


def by_routes_of_a_manager() -> None:
    manager = OpenAIChatProxyManager()
    manager.add_proxy("default", proxies("default")["default"])
    manager.register_model_route("deepseek-*", proxy_map=proxies("ds-svc"))
    for route in manager.list_routes():
        print(route["pattern"], route["strategy"], route["proxy_count"], route["healthy_count"], route["keys"])
    print(list(manager.proxies()), manager.select_proxy(model="llama-3") is manager.proxy("default"))


if __name__ == "__main__":
    by_a_manager()
    by_a_router()
    by_routes_of_a_manager()
