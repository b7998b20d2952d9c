"""A runner that opens an attempt, says so, and finishes it once it is told to. Tests stop its process in between.

`python -m tests.rules.frozen URL TOKEN ROLLOUT`
"""

from __future__ import annotations

import asyncio
import sys

from relight.errors import RelightError
from relight.store.attempts.plain_http_client import StoreLink
from relight.types.wire import FinishRequest, OpenRequest


async def main(url: str, token: str, rollout_id: str) -> None:
    async with StoreLink(url, token) as store:
        request = OpenRequest(rollout_id=rollout_id, try_number=1, execution="frozen", worker_id="frozen")
        opened = (await store.open_attempt(request)).attempt
        assert opened is not None
        print("opened", opened.attempt_id, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        finish = FinishRequest(attempt_id=opened.attempt_id, fence=opened.fence, reward=-1.0)
        for call in (store.finish_attempt(finish), store.heartbeat(opened.attempt_id, opened.fence, "frozen")):
            try:
                await call
            except RelightError as error:
                print(type(error).__name__, flush=True)
            else:
                print("taken", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
