"""Functions that hang in a thread: the process ends without them."""

from __future__ import annotations

import signal
import subprocess
import sys

HUNG = """
import asyncio, threading
from qreward import BatchQueue, batch
from qreward.batching.reward_buffer import RewardBuffer
from qreward.errors import RequestTimeout

def hangs(items):
    print("called", flush=True)
    threading.Event().wait()

def queue(**settings):
    return BatchQueue(hangs, **settings)
"""

ENDS = """
def said(error):
    print("timeout" if isinstance(error, RequestTimeout) else error, flush=True)

async def a_queue_that_is_closed():
    try:
        async with queue(timeout=0.05) as its:
            await its.submit(1)
    except RequestTimeout as error:
        said(error)

async def a_queue_that_is_drained():
    its = queue(timeout=0.05)
    try:
        await its.submit(1)
    except RequestTimeout as error:
        said(error)
    await its.close()

async def a_decorated_function():
    try:
        await batch(timeout=0.05)(hangs)(1)
    except RequestTimeout as error:
        said(error)

async def a_reward_buffer():
    async with RewardBuffer(hangs, timeout=0.05) as its:
        (scored,) = await its.score(["a"])
        said(scored.cause)

for main in (a_queue_that_is_closed, a_queue_that_is_drained, a_decorated_function, a_reward_buffer):
    print(main.__name__, flush=True)
    asyncio.run(main())
print("end")
"""


def test_a_process_ends_although_functions_hang() -> None:
    done = subprocess.run([sys.executable, "-c", HUNG + ENDS], capture_output=True, text=True, timeout=60, check=False)
    cases = ("a_queue_that_is_closed", "a_queue_that_is_drained", "a_decorated_function", "a_reward_buffer")
    said = [word for case in cases for word in (case, "called", "timeout")]
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [*said, "end"], "")


def test_an_interrupt_does_not_wait_for_a_function_that_hangs() -> None:
    script = f"{HUNG}\nasync def main():\n    await queue().submit(1)\nasyncio.run(main())"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "called\n"
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
