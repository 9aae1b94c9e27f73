"""Runs the fragments of pages, in a process of their own: ``python fragments.py pages.json``, from page to its fragments.

The fragments of a page share one namespace and one event loop. It begins with the names that the pages use without a word.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import faulthandler
import inspect
import io
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from qreward import Endpoint, Judge, QRewardClient
from qreward.settings.client import load_config

SECONDS = 400  # of one fragment; a page that hangs says where


def names(endpoints: tuple[Endpoint, ...], client: QRewardClient) -> dict[str, Any]:
    """What a fragment finds without making it."""
    prompts = ["What is 6 x 7?", "Name a prime.", "The capital of Norway?", "How many sides has a cube?"]
    responses, references = ["forty-two", "8", "Oslo", "6"], ["42", "7", "Oslo", "6"]
    conversations = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}] for prompt in prompts]
    triples = list(zip(prompts, responses, references, strict=True))
    return {
        "__name__": "page",
        "endpoints": list(endpoints),
        "client": client,
        "judge": Judge(client, model="judge-7b"),
        "messages": conversations[0],
        "conversations": conversations,
        "task": prompts[0],
        "answer": responses[0],
        "reference": references[0],
        "prompts": prompts,
        "responses": responses,
        "references": references,
        "rollouts": triples,
        "rows": [{"prompt": p, "response": r, "reference": a, "id": number} for number, (p, r, a) in enumerate(triples)],
    }


def run_page(fragments: list[str]) -> str:
    """Runs the fragments of one page one after the other; what went wrong with the first that failed, or nothing."""
    endpoints = load_config("qreward.yaml").endpoints
    client = QRewardClient(endpoints)
    known, wrong = names(endpoints, client), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(wrong), asyncio.Runner() as runner:
        for number, fragment in enumerate(fragments, 1):
            faulthandler.dump_traceback_later(SECONDS, exit=True, file=2)
            try:
                code = compile(fragment, f"fragment {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(eval(code, known))
                else:
                    exec(code, known)
            except BaseException:
                traceback.print_exc()
                wrong.write(fragment)
                break
        runner.run(client.aclose())
    faulthandler.cancel_dump_traceback_later()
    return wrong.getvalue()


if __name__ == "__main__":
    pages = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps({page: run_page(fragments) for page, fragments in pages.items()}))
