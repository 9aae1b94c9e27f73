"""A bulk with the HTTP processor of Ray Data, as in its documentation.

python bulk_ray_http.py INPUT OUTPUT URL WORKERS BATCH
"""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor

BLOCKS = 4
"""Number of blocks of the input for each worker, so that every worker has work."""


def before(row: dict[str, Any]) -> dict[str, Any]:
    return {"payload": row["body"], "custom_id": row["custom_id"]}


def after(row: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": row["custom_id"], "response": row["http_response"]["choices"][0]["message"]["content"]}


def main(source: str, output: str, url: str, workers: int, batch: int) -> None:
    ray.init(num_cpus=workers + 2, include_dashboard=False, log_to_driver=False, object_store_memory=200 * 2**20)
    config = HttpRequestProcessorConfig(url=f"{url}/chat/completions", concurrency=workers, batch_size=batch, max_retries=5)
    rows = ray.data.read_json(source, lines=True, override_num_blocks=BLOCKS * workers)
    build_processor(config, preprocess=before, postprocess=after)(rows).write_json(output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
