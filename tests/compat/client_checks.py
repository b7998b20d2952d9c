"""Agent Lightning 0.3's published client drives a store server through all of its methods.

    PEER_PYTHON tests/compat/client_checks.py STORE_URL

Run by the Python of the peer's environment. It knows nothing of whose server it talks to: what it asks of the peer's
own it asks of ours. Prints one JSON object: name of a check to "ok" or a traceback.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback

import rollout_checks  # noqa: F401  (its checks)
import span_checks  # noqa: F401  (its checks)
from checks import CHECKS, Client


async def run(url: str) -> dict[str, str]:
    """All checks, one after the other, against one store."""
    client, results = Client(url, retry_delays=(0.2,), health_retry_delays=(0.1,)), dict[str, str]()
    for function in CHECKS:
        try:
            async with asyncio.timeout(60):
                await function(client)
            results[function.__name__] = "ok"
        except Exception:  # a check that fails is this script's result, whatever it fails of
            results[function.__name__] = traceback.format_exc()
        while await client.dequeue_rollout():
            """What a failed check left in the queue is no other's."""
    await client.close()
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1]))))
