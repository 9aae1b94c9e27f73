"""The request and response models of vLLM and SGLang, and the functions that make their answers, from their own wheels.

Neither package can be imported without a build for GPUs. Here the listed modules run from the files of the wheels, and everything else
that they import from these packages is an empty stand-in.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

WHEELS = {"vllm": "vllm==0.33.0", "sglang": "sglang==0.5.23"}
TAGS = ("--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--platform=manylinux_2_28_x86_64",
        "--platform=manylinux_2_34_x86_64")  # fmt: skip
FOLDER = Path(__file__).parents[1] / ".envs" / "decisions" / "wheels"
REAL = (
    "vllm.exceptions",
    "vllm.entrypoints.serve.engine.protocol",
    "vllm.entrypoints.serve.exception_handling.utils",
    "vllm.entrypoints.serve.exception_handling.error_response",
    "vllm.entrypoints.serve.exception_handling.handlers.validation",
    "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.openai.decisions.protocol",
    "vllm.entrypoints.openai.decisions.question_types",
    "vllm.entrypoints.openai.decisions.adapters",
    "vllm.entrypoints.generate.structured_decisions.protocol",
    "vllm.entrypoints.generate.generative_scoring.serving",
    "sglang.srt.entrypoints.openai.protocol",
    "sglang.srt.entrypoints.openai.serving_decisions",
    "sglang.srt.entrypoints.systemone.protocol",
    "sglang.srt.entrypoints.systemone.serving",
)
"""Modules of which the real files run."""
STAND_INS = ("vllm", "sglang", "transformers", "orjson", "pybase64", "PIL")
"""Packages of which every other module is empty."""


def _logger(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.warning_once = logger.warning  # type: ignore[attr-defined]
    return logger


@dataclasses.dataclass
class StructuredOutputsParams:
    json: Any = None


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "vllm.envs": {"VLLM_MAX_STOP_STRINGS": 64},
    "vllm.logger": {"init_logger": _logger},
    "vllm.utils": {"random_uuid": lambda: uuid.uuid4().hex},
    "vllm.sampling_params": {"StructuredOutputsParams": StructuredOutputsParams},
}


class StandIn(ModuleType):
    """A module in which every name is a class of its own."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (), {"__init__": lambda *_, **__: None})
        setattr(self, name, found)
        return found


class Servers(MetaPathFinder, Loader):
    """Finds the modules of ``REAL`` in the unpacked wheels, and makes stand-ins of all others."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in STAND_INS:
            return None
        if name in REAL:
            return spec_from_file_location(name, self._root / f"{name.replace('.', '/')}.py")
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = StandIn(spec.name)
        module.__dict__.update(ATTRIBUTES.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in has nothing to run."""


def install() -> None:
    """Download the wheels once, unpack what is needed of them, and make their modules importable."""
    if any(isinstance(finder, Servers) for finder in sys.meta_path):
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for package, requirement in WHEELS.items():
        done = FOLDER / f"{requirement}.done"
        if done.exists():
            continue
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *TAGS, "--dest", str(FOLDER)]
        subprocess.run([*command, requirement], check=True)
        wheel = next(FOLDER.glob(f"{package}-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(FOLDER, [f"{name.replace('.', '/')}.py" for name in REAL if name.startswith(f"{package}.")])
        wheel.unlink()
        done.touch()
    sys.meta_path.insert(0, Servers(FOLDER))


def module(name: str) -> Any:
    """A module of a server."""
    install()
    assert name in REAL
    return importlib.import_module(name)
