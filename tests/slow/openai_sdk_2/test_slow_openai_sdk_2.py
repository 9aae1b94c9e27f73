"""The drop-in and LangChain over it, under openai 2."""

from __future__ import annotations

import openai
from langchain_cases import *  # noqa: F403
from suite import *  # noqa: F403


def test_this_is_openai_2() -> None:
    assert openai.__version__.startswith("2.")
