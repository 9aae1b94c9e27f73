"""A responder for fleets in a child process, which import it by name."""

from __future__ import annotations


def shout(messages: list[dict[str, str]]) -> str:
    print("noise that must not reach the pipe")
    return messages[0]["content"].upper()
