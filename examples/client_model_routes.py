"""Routes from model names to endpoints: an exact name wins over a glob, the most specific glob wins over others.

Run it: ``python examples/client_model_routes.py``.
"""

from __future__ import annotations

import asyncio

from connect import MODEL, connect, conversation

from qreward import QRewardClient, QRewardError
from qreward.testing import FakeEndpoint

FLEET = (
    FakeEndpoint(name="small", models=["judge-7?"], responder="judge"),
    FakeEndpoint(name="large", models=["judge-*"], responder="judge"),
)
MESSAGES = conversation("What is the capital of Finland?", reference="Helsinki", candidate="It is Helsinki.")


async def ask(client: QRewardClient, model: str) -> None:
    """Print which endpoint answers for a model."""
    (result,) = await client.batch_chat_completion([MESSAGES], model=model, temperature=0, timeout=60)
    print(f"{model} -> {result.endpoint if result.ok else result.error}")


async def main() -> None:
    async with connect(*FLEET) as client:
        for model in (MODEL, "judge-70b"):
            await ask(client, model)
        client.register_model_route(MODEL, list(client.stats())[-1:])
        for route in client.list_routes():
            print(f"route {route.pattern} -> {', '.join(route.endpoints)}")
        await ask(client, MODEL)
        try:
            await client.chat_completion(MESSAGES, model="unknown-model")
        except QRewardError as error:
            print(f"not served: {error}")


if __name__ == "__main__":
    asyncio.run(main())
