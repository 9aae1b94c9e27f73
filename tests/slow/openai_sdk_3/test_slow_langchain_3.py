"""LangChain under openai 3."""

from __future__ import annotations

from langchain_cases import *  # noqa: F403
