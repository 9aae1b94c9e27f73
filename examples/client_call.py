"""One call to a judge. The response is an openai ``ChatCompletion``; a failure is a typed error that lists its attempts.

Run it: ``python examples/client_call.py``.
"""

from __future__ import annotations

import asyncio

from connect import MODEL, connect, conversation

from qreward import RequestError
from qreward.testing import FakeEndpoint


async def main() -> None:
    messages = conversation("What is 6 times 7?", reference="42", candidate="forty-two")
    async with connect(FakeEndpoint(name="judge-0", models=["judge-*"], responder="judge")) as client:
        try:
            completion = await client.chat_completion(messages, model=MODEL, temperature=0, timeout=60)
        except RequestError as error:
            print(f"failed after {len(error.attempts)} attempts: {error}")
            raise SystemExit(1) from error
    print(completion.choices[0].message.content)


if __name__ == "__main__":
    asyncio.run(main())
