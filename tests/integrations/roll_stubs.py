"""As much of ROLL and torch as a reward worker touches, with ROLL's signatures, to test the contract where neither is installed."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any

FLAG = "BIND_WORKER_METHOD_FLAG"


class Dispatch(Enum):
    ONE_TO_ALL = auto()
    DP_MP_COMPUTE = auto()


def register(
    dispatch_mode: Any = None, execute_mode: Any = None, clear_cache: bool = True, trace: bool = False, to_remote: bool = False
) -> Callable[[Any], Any]:
    """As ROLL's: a coroutine function stays one, which is what makes the actor async."""

    def decorator(function: Any) -> Any:
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                return await function(*args, **kwargs)
        else:

            @wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

        setattr(wrapper, FLAG, {"dispatch_mode": dispatch_mode, "clear_cache": clear_cache})
        return wrapper

    return decorator


class Tensor(list[Any]):
    """A list that knows its dtype."""

    dtype = "int64"

    def clone(self) -> Tensor:
        return tensor(self, dtype=self.dtype)


def tensor(values: Any, dtype: str = "int64") -> Tensor:
    made = Tensor(values)
    made.dtype = dtype
    return made


def zeros_like(values: Any, dtype: str) -> Tensor:
    return tensor([[0.0] * len(row) for row in values], dtype)


class DataProto:
    def __init__(self, batch: Any = None, non_tensor_batch: Any = None, meta_info: Any = None) -> None:
        self.batch = batch or {}
        self.non_tensor_batch = non_tensor_batch or {}
        self.meta_info = meta_info or {}

    @classmethod
    def from_dict(cls, tensors: dict[str, Tensor]) -> DataProto:
        return cls(tensors)


class Worker:
    def __init__(self, worker_config: Any) -> None:
        self.worker_config = worker_config
        self.rank_info = SimpleNamespace(rank=1, world_size=2, dp_rank=None, dp_size=None)

    def initialize(self, pipeline_config: Any) -> None:
        self.pipeline_config = pipeline_config


class UserDefinedRolloutLoop:
    """Its own loop in small: each sample of a prompt is rewarded, and None of one of them drops the prompt."""

    def __init__(self) -> None:
        self.domain = "d"

    async def process_new_prompt(self, context: Any) -> Any:
        found = await asyncio.gather(*(self._generate_and_reward(context=context, req=req, domain=self.domain) for req in context.requests))
        return None if None in found else found

    async def _generate_and_reward(self, context: Any, req: Any, domain: str) -> Any:
        return await context.compute_rewards(req=req, domain=domain)


class Tokenizer:
    """Token 3 is the text ``"3"``; 0 pads."""

    def batch_decode(self, rows: Any, skip_special_tokens: bool) -> list[str]:
        return [" ".join(str(token) for token in row if token or not skip_special_tokens) for row in rows]


NAMES: dict[str, dict[str, Any]] = {
    "roll.distributed.executor.worker": {"Worker": Worker},
    "roll.distributed.scheduler.decorator": {"Dispatch": Dispatch, "register": register},
    "roll.distributed.scheduler.protocol": {"DataProto": DataProto},
    "roll.distributed.scheduler.user_defined_rollout_loop": {"UserDefinedRolloutLoop": UserDefinedRolloutLoop},
    "roll.models.model_providers": {"default_tokenizer_provider": lambda model_args: Tokenizer()},
    "roll.utils.prompt": {"prompt_maps": {"strict": "{question} {response} {reference} YES or NO?"}},
    "roll.utils.logging": {"get_logger": lambda: SimpleNamespace(warning=lambda text: None)},
    "torch": {"tensor": tensor, "zeros_like": zeros_like, "float16": "float16", "Tensor": Tensor},
}


@contextmanager
def installed() -> Iterator[None]:
    """They are what is imported, and afterwards nothing of it is left."""
    before = dict(sys.modules)
    for name, contents in NAMES.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        vars(sys.modules[name]).update(contents)
    try:
        yield
    finally:
        for name in set(sys.modules) - set(before):
            if name.partition(".")[0] in ("roll", "torch") or name == "qreward.integrations.roll.worker":
                del sys.modules[name]
