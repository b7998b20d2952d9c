"""A process that stands for the gateway: `python -m tests.rules.gateway_process PORT`. It answers as it is told to."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"status": "ok", "waited_seconds": 0.0, "last_activity_seconds_ago": None})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ready = Path(asked.get("ready", "/nowhere"))
        if asked["say"] == "never" or (asked["say"] == "the second time" and not ready.exists()):
            ready.touch()
            time.sleep(600)
        self._answer(asked)

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
