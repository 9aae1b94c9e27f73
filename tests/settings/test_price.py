"""What the answers of an endpoint cost: how a price is written, what is refused, and how the cost of a batch is reckoned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward import BatchResult, BatchStats, ConfigError, Endpoint, EndpointStats
from qreward.settings.client import load_config

URL = "http://gpu-0:8000/v1"
FILES = {
    "q.yaml": f"endpoints:\n  - base_url: {URL}\n    price: [0.15, 0.60]\n",
    "q.json": json.dumps({"endpoints": [{"base_url": URL, "price": [0.15, 0.6]}]}),
    "q.toml": f'[[endpoints]]\nbase_url = "{URL}"\nprice = [0.15, 0.6]\n',
}
NO_PRICES: list[tuple[Any, str]] = [
    *((price, "price: must be a valid list") for price in (0.15, "0.15", {"prompt": 0.15, "completion": 0.6})),
    ({0.15, 0.6}, "price: must be a list, because a set has no order"),
    ([], "price.0: is required"),
    ([0.15], "price.1: is required"),
    ([0.15, 0.6, 0.075], "price: must have at most 2 items, not 3"),
    ([-0.15, 0.6], "price.0: must be at least 0, not -0.15"),
    ([0.15, float("nan")], "price.1: must be a finite number, not nan"),
    ([True, 0.6], "price.0: must be a number, not true or false"),
    ([None, 0.6], "price.0: must be a valid number, not None"),
    (["a cent", 0.6], "price.0: must be a valid number, not 'a cent'"),
]


def test_a_price_is_read_from_every_kind_of_file_and_may_stand_in_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPT_PRICE", "0.15")
    for name, text in FILES.items():
        for written in (text, text.replace("0.15", '"${PROMPT_PRICE}"')):
            (tmp_path / name).write_text(written)
            assert load_config(tmp_path / name).endpoints[0].price == (0.15, 0.6), written
    assert [Endpoint(URL).price, Endpoint(URL, price=(0, 0)).price] == [None, (0.0, 0.0)]
    assert "price=(0.15, 0.6)" in repr(Endpoint(URL, price=[0.15, 0.6]))


def test_what_is_no_price_is_refused_and_the_error_says_where(tmp_path: Path) -> None:
    for price, said in NO_PRICES:
        with pytest.raises(ConfigError) as caught:
            load_config({"endpoints": [{"base_url": URL, "price": price}]})
        assert f"endpoints.0.{said}" in str(caught.value)
    for name, number in (("q.yaml", ".nan"), ("q.yaml", ".inf"), ("q.json", "NaN"), ("q.json", "Infinity"), ("q.toml", "nan")):
        (tmp_path / name).write_text(FILES[name].replace("0.15", number))
        with pytest.raises(ConfigError, match=r"endpoints\.0\.price\.0: must be a finite number"):
            load_config(tmp_path / name)


def batch_of(**tokens: tuple[int, int]) -> BatchResult[Any]:
    endpoints = {name: EndpointStats(prompt_tokens=prompt, completion_tokens=completion) for name, (prompt, completion) in tokens.items()}
    return BatchResult([], BatchStats(endpoints=endpoints))


def test_a_batch_costs_what_its_tokens_cost_at_each_endpoint_and_nothing_is_known_without_any_price() -> None:
    batch = batch_of(api=(2_000_000, 500_000), cheap=(1_000_000, 0), own=(9_000_000, 9_000_000))
    assert batch.cost is None
    assert batch.priced({"api": (0.15, 0.6), "cheap": (0.05, 0.1), "another": (7.0, 7.0)}) is batch
    assert batch.cost == batch.stats.cost == pytest.approx(0.30 + 0.30 + 0.05)
    assert batch_of(own=(10, 10)).priced({}).cost is None
    assert batch_of(own=(10, 10)).priced({"api": (0.15, 0.6)}).cost == 0.0
    assert type(batch_of().priced({"api": (1.0, 1.0)}).cost) is float


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), max_size=20), st.floats(0, 1e3), st.floats(0, 1e3))
def test_the_cost_does_not_depend_on_how_many_endpoints_shared_the_tokens(
    parts: list[tuple[int, int]], prompt: float, completion: float
) -> None:
    shared = {f"e{number}": tokens for number, tokens in enumerate(parts)}
    whole = (sum(part[0] for part in parts), sum(part[1] for part in parts))
    together = batch_of(**shared).priced(dict.fromkeys([*shared, "one"], (prompt, completion)))
    assert together.cost == pytest.approx(batch_of(one=whole).priced({"one": (prompt, completion)}).cost)
