"""An S3-compatible server of its own for a test: moto's, which speaks S3 over HTTP and keeps everything in memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock
from urllib.request import Request, urlopen

BUCKET = "relight-tests"
BOOT_SECONDS = 60


@contextmanager
def s3_server() -> Generator[str]:
    """Its URL; while it serves, this process and its children find it, and the keys, in their environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "hush-hush-hush",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_it_answers(url)
        urlopen(Request(f"{url}/{BUCKET}", method="PUT")).close()
        with mock.patch.dict(os.environ, environment):
            yield url
    finally:
        process.kill()
        process.wait()


def wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + BOOT_SECONDS
    while True:
        try:
            urlopen(url, timeout=5).close()
        except OSError:  # no server listens, or not in time
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
