"""The example and the page of the drop-in: they run, and what they say of errors is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import openai
from test_openai_errors import TABLE

ROOT = Path(__file__).parents[2]
RAISED = {400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError", 429: "RateLimitError"}


def test_the_example_judges_by_the_sdk_over_two_endpoints() -> None:
    command = [sys.executable, "-W", "error", "openai_drop_in.py"]
    done = subprocess.run(command, cwd=ROOT / "examples", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    judged, sent, stream, facade = done.stdout.splitlines()
    assert judged == "60 judged: 30 correct, 30 incorrect"
    shares = [int(count) for count in re.findall(r"judge-\d (\d+)", sent)]
    assert len(shares) == 2
    assert sum(shares) > 60  # some failed, and were sent again
    assert stream.count("|") > 20
    assert '"verdict": "correct"' in stream.replace("|", "")
    assert facade.startswith('without the SDK: {"verdict": "correct"')


def test_the_page_says_of_each_error_what_becomes_of_it() -> None:
    page = (ROOT / "docs" / "openai.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| \[(\w+)\]\(errors\.md#\w+\) \| (.*) \|$", page, flags=re.MULTILINE))
    for error, status, code in TABLE:
        name = type(error).__name__
        if name in ("StreamInterrupted", "DeadlineExceeded", "RequestError"):  # told of in words, of a batch, and of none of these
            assert name not in rows
            continue
        statuses, codes, raised = rows[name].split(" | ")
        assert str(status) in statuses or "the server's" in statuses
        assert f"`{code}`" in codes
        kind = RAISED.get(status, "InternalServerError" if status >= 500 else "UnprocessableEntityError")
        assert f"`{kind}`" in raised
        assert issubclass(getattr(openai, kind), openai.APIStatusError)
