"""What servers say of themselves, as they really write it, and with anything missing or odd."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from shared_tools import each

from qreward.codecs.rewards.server_info import READERS, Load, read_load

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/rm {7b}, \\"x\\""} 3.0
vllm:num_requests_running{engine="1",model_name="org/rm"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} NaN
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
"""
CACHE = b"""vllm:num_requests_running{engine="0"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="18750"} 1.0
vllm:cache_config_info{num_gpu_blocks="1000",engine="1",block_size="32"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0
"""
SGLANG = b"""sglang:num_running_reqs{model_name="m"} 4
sglang:num_queue_reqs{model_name="m"} 5
sglang:token_usage{model_name="m"} 0.5 1700000000
"""
LOADS = {
    "timestamp": "x",
    "loads": [
        {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 2, "token_usage": 0.2, "max_running_requests": 64},
        {"dp_rank": 1, "num_running_reqs": 7, "num_waiting_reqs": 5, "token_usage": 0.9, "max_running_requests": 64},
    ],
}
INFO = {
    "model_id": "BAAI/x",
    "max_client_batch_size": 32,
    "max_concurrent_requests": 512,
    "max_input_length": 510,
    "max_batch_tokens": 16384,
}

TOLD: list[tuple[str, Any, Load]] = [
    ("/metrics", VLLM, Load(running=5.0, waiting=7.0)),
    ("/metrics", CACHE, Load(running=1.0, cache_tokens=16 * 18_750 + 32 * 1_000)),
    ("/metrics", SGLANG, Load(running=4.0, waiting=5.0)),
    ("/metrics", b"# TYPE te_queue_size gauge\r\nte_queue_size 6\r\n", Load(waiting=6.0)),
    ("/v1/loads", LOADS, Load(running=10.0, waiting=7.0, concurrency=128)),
    ("/get_load", [{"dp_rank": 0, "num_reqs": 9, "num_waiting_reqs": 4, "num_tokens": 8}], Load(running=5.0, waiting=4.0)),
    ("/info", INFO, Load(models=("BAAI/x",), items=32, concurrency=512, input_tokens=510, batch_tokens=16384)),
    ("/v1/models", {"data": [{"id": "a"}, {"id": 7}, {}, "b", {"id": "c"}]}, Load(ready=True, models=("a", "c"))),
    ("/v1/loads", {"loads": [{}]}, Load()),
    ("/info", {"max_client_batch_size": 0, "max_input_length": None}, Load()),
    ("/v1/loads", {"loads": [{"num_running_reqs": -1, "num_waiting_reqs": True}]}, Load()),
]


@each("path, document, expected", TOLD)
def test_what_a_server_says_of_itself_is_read(path: str, document: Any, expected: Load) -> None:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    assert read_load(path, 200, body) == expected
    assert read_load(path, 404, body) == Load()


def test_health_is_a_matter_of_the_status() -> None:
    for path in ("/health", "/v1/health/ready"):
        assert read_load(path, 200, b"") == Load(ready=True)
        assert read_load(path, 503, b"") == Load(ready=False)
        assert read_load(path, 404, b"") == Load()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["loads", "data", "id", "num_reqs", "num_running_reqs", *INFO]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["/health", *READERS]), st.integers(199, 201), st.binary(max_size=80) | JSON.map(lambda odd: json.dumps(odd).encode())
)
def test_no_body_is_too_odd(path: str, status: int, body: bytes) -> None:
    load = read_load(path, status, body)
    for told in (load.running, load.waiting):
        assert told is None or 0 <= told < float("inf")


def test_labels_may_hold_anything_and_odd_lines_are_passed_over() -> None:
    text = """te_queue_size{x="}\\" 9"} 1
te_queue_size 2e1
te_queue_size
te_queue_size{x="y" 5
te_queue_size_max 9
te_queue_size +Inf
te_queue_size  7 1700
"""
    assert read_load("/metrics", 200, text.encode()) == Load(waiting=28.0)


def test_a_path_with_a_reader_of_its_own_is_read_by_it() -> None:
    readers = {"/queue": lambda body: Load(waiting=float(body))}
    assert read_load("/queue", 200, b"3", readers) == Load(waiting=3.0)
    assert read_load("/queue", 503, b"3", readers) == Load()


def test_later_news_go_over_earlier_and_leave_the_rest() -> None:
    first = Load(ready=True, running=3.0, models=("a",), items=32, concurrency=512)
    assert first.joined(Load(running=0.0, concurrency=8)) == Load(ready=True, running=0.0, models=("a",), items=32, concurrency=8)
    assert first.joined(Load()) == first
    assert Load().joined(first) == first


def test_a_list_has_no_more_items_than_the_server_says_and_than_it_has_places() -> None:
    table = [
        (Load(items=128), 128),
        (Load(items=8, concurrency=512), 8),
        (Load(items=64, concurrency=16), 16),
        (Load(concurrency=16), None),  # counts requests, and not items
        (Load(), None),
    ]
    assert [load.list_items for load, _ in table] == [items for _, items in table]
