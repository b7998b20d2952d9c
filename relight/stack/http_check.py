"""Checks that a service answers over HTTP. The error has the address, the reason and the remedy."""

from __future__ import annotations

import aiohttp

from relight.errors import StoreError


async def require_http(url: str, what: str, setting: str) -> None:
    """Check that a GET is answered with success.

    Raises:
        StoreError: it is not.
    """
    try:
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            if answer.status < 400:
                return
            reason = f"it answers {answer.status}"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
    raise StoreError(
        f"can't reach {what} at {url}: {reason}; check {setting}, or start the embedded stack with `relight up`"
    )
