"""What suites of several trainers share: judges of which a tenth of what they take fails or hangs, and a tokenizer of bytes."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency


def narrow_and_wide(base: float, responder: Any = "judge", process: bool = False) -> FakeFleet:
    """One judge that rejects what is more than 8 at once, and one that does not; ``base`` is the latency of both."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    common: dict[str, Any] = {"responder": responder, "latency": Latency(base=base)}
    faults = [Faults(error_500=0.05, hang=0.05, seed=seed + at) for at in range(2)]
    narrow = FakeEndpoint("narrow", max_concurrency=8, faults=faults[0], **common)
    return FakeFleet([narrow, FakeEndpoint("wide", faults=faults[1], **common)], process=process)


def peaks(fleet: FakeFleet) -> list[int]:
    """How many each endpoint had in flight at once."""
    return [fleet.seen(name).peak_in_flight for name in fleet.names]


def went_wrong(fleet: FakeFleet) -> int:
    """How many were rejected, or failed or hung by the faults."""
    seen = [fleet.seen(name) for name in fleet.names]
    return sum(each.rejected + each.errors.get("error_500", 0) + each.errors.get("hang", 0) for each in seen)


def byte_tokenizer() -> Any:
    """Bytes and two special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    special = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **special)


def wait_for(url: str, process: subprocess.Popen[bytes], said: Path) -> None:
    """Wait until a server that was started as ``process`` answers ``url``. ``said`` is the file of its output."""
    while True:
        assert process.poll() is None, said.read_text()
        with suppress(httpx.TransportError):
            if httpx.get(url, trust_env=False, timeout=5).status_code == 200:
                return
        time.sleep(0.1)
