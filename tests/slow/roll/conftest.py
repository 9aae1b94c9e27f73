"""ROLL's sources, a small Ray, a tokenizer made here, and real clusters of reward workers.

PyPI has no ROLL: ``QREWARD_ROLL_SOURCE`` names the folder of a checkout of ``github.com/alibaba/ROLL``. Without it nothing here runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).parent
SOURCE = os.environ.get("QREWARD_ROLL_SOURCE", "")
STORE = 100 * 2**20

collect_ignore_glob: list[str] = []
if SOURCE:
    os.environ |= {"ROLL_LOG_DIR": tempfile.mkdtemp(prefix="roll-logs-"), "MODEL_DOWNLOAD_TYPE": "HUGGINGFACE_HUB", "HF_HUB_OFFLINE": "1"}
    sys.path[:0] = [SOURCE, str(HERE)]


@pytest.fixture(scope="session", autouse=True)
def source() -> str:
    """The folder of ROLL's sources."""
    if not SOURCE:
        pytest.skip("QREWARD_ROLL_SOURCE names no checkout of github.com/alibaba/ROLL")
    return SOURCE


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """The module ``ray``, connected to a Ray of its own."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray warns of is not ours
        import ray

        paths = os.pathsep.join([SOURCE, str(HERE)])
        here = {"env_vars": {"PYTHONPATH": paths, "ROLL_LOG_DIR": os.environ["ROLL_LOG_DIR"], "HF_HUB_OFFLINE": "1"}}
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        ray.init(num_cpus=4, namespace="roll", object_store_memory=STORE, runtime_env=here, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One token a word, saved as Hugging Face does; its folder is ``name_or_path``."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "user", "question", *map(str, range(1000))]
    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = str(tmp_path_factory.mktemp("tokenizer"))
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


class Resources:
    """In place of ROLL's manager of GPUs: all workers are in one placement group of CPUs."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def allocate_placement_group(self, device_mapping: Any, world_size: int) -> list[list[dict[str, Any]]]:
        return [[{"placement_group": self._group, "gpu_rank": None, "node_rank": 0}] for _ in range(world_size)]


@pytest.fixture(scope="session")
def resources(ray: Any) -> Any:
    group = ray.util.placement_group([{"CPU": 2}])
    ray.get(group.ready())
    return Resources(group)


@pytest.fixture
def cluster(ray: Any, resources: Any, tokenizer: Any) -> Iterator[Callable[..., Any]]:
    """Makes a cluster of ROLL's, from what stands under ``rewards.<domain>`` in a yaml, and initializes it; all are killed at the end."""
    from dacite import from_dict
    from roll.configs import ModelArguments
    from roll.distributed.executor.cluster import Cluster
    from roll.pipeline.rlvr.rlvr_config import RewardConfig

    made: list[Any] = []

    def make(name: str = "reward-a", **keys: Any) -> Any:
        usual = {"worker_cls": "roll_workers.ObservedWorker", "world_size": 1, "judge_model_name": "judge-7b"}
        config = from_dict(data_class=RewardConfig, data=usual | keys)
        made.append(Cluster(name=name, worker_cls=config.worker_cls, resource_manager=resources, worker_config=config))
        arguments = ModelArguments(model_name_or_path=tokenizer.name_or_path)
        made[-1].initialize(SimpleNamespace(actor_train=SimpleNamespace(model_args=arguments), resume_from_checkpoint=False))
        return made[-1]

    yield make
    for each in made:
        for worker in each.workers:
            ray.kill(worker)


@pytest.fixture
def rollouts(tokenizer: Any) -> Callable[..., Any]:
    """Makes a batch as ROLL's scheduler sends it: pairs of a response and what is right."""
    import numpy as np
    import torch
    from roll.distributed.scheduler.protocol import DataProto

    def make(*pairs: tuple[int, int], domain: str = "a", **meta: Any) -> Any:
        encode = lambda texts: torch.tensor(tokenizer(texts, padding="max_length", max_length=6)["input_ids"])  # noqa: E731
        columns = {
            "id": [str(at) for at in range(len(pairs))],
            "ground_truth": [str(right) for _, right in pairs],
            "domain": [domain] * len(pairs),
        }
        responses = encode([str(response) for response, _ in pairs])
        return DataProto.from_dict(
            tensors={"prompts": encode([f"user question {right}" for _, right in pairs]), "responses": responses},
            non_tensors={name: np.array(values, dtype=object) for name, values in columns.items()},
            meta_info={"global_step": 1, "is_offload_states": True, **meta},
        )

    return make
