"""A bulk of a Dataset as a job of its own, which can be killed as a whole: ``python bulk_job.py OUTPUT URL ROWS``."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
warnings.simplefilter("ignore")
sys.path.append(str(Path(__file__).parents[2] / "acceptance"))

import ray  # noqa: E402
from bulk_tools import chat_line  # noqa: E402

from qreward.integrations.ray import run  # noqa: E402

if __name__ == "__main__":
    output, url, rows = sys.argv[1:]
    ray.init(num_cpus=4, object_store_memory=100 * 2**20, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.from_items([chat_line(number) for number in range(int(rows))], override_num_blocks=20)
    limits = {"max_concurrency": 16, "adaptive": False}
    report = run(
        dataset, output, {"endpoints": [{"base_url": url, "limits": limits}]}, actors=4, batch_size=25, ray_options={"num_cpus": 0.5}
    )
    print(f"done {report.done} lines {report.lines} resumed {report.resumed} sent {report.sent} again {report.sent_again}")
    ray.shutdown()
