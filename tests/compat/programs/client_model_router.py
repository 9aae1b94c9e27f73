"""Proxies by model: exact names, patterns, weights and health of a group, and a manager with routes."""

from qreward.client import LoadBalanceStrategy, OpenAIChatProxy, OpenAIChatProxyManager
from qreward.client.model_router import ModelRouter


def proxies(*names: str) -> dict[str, OpenAIChatProxy]:
    return {name: OpenAIChatProxy(base_url=f"http://{name}.example.com/v1", api_key="sk-1") for name in names}


def main() -> None:
    router = ModelRouter()
    router.register("gpt-*", proxy_map=proxies("standard"))
    router.register("gpt-4", proxy_map=proxies("premium", "other"), weights={"premium": 3, "other": 1},
                    strategy=LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN)  # fmt: skip
    for model in ("gpt-4", "gpt-3.5-turbo", "llama-3"):
        group = router.resolve(model)
        print(model, group and (group.pattern, list(group.proxies)))
    group = router.resolve("gpt-4")
    keys = {id(proxy): key for key, proxy in group.proxies.items()}
    chosen = [keys[id(router.select_from_group(group))] for _ in range(8)]
    print(chosen.count("premium"), chosen.count("other"))
    router.mark_unhealthy("gpt-4", "premium")
    print(group.healthy_keys, keys[id(router.select_from_group(group))])
    router.mark_healthy("gpt-4", "premium")
    print(sorted(group.healthy_keys))

    manager = OpenAIChatProxyManager()
    manager.add_proxy("default", proxies("default")["default"])
    manager.register_model_route("gpt-4", proxy_map=proxies("gpt4-svc"))
    manager.register_model_route("deepseek-*", proxy_map=proxies("ds-svc"))
    for route in manager.list_routes():
        print(route["pattern"], route["strategy"], route["proxy_count"], route["healthy_count"], route["keys"])
    print(list(manager.proxies()), manager.select_proxy(model="llama-3") is manager.proxy("default"))


if __name__ == "__main__":
    main()
