"""A proxy in front of an inference server, which sums up the tokens that the server itself reports."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class CountingProxy:
    """Every request is completed at the server, also where the client is gone: what a killed client had in flight counts."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.tokens: list[int] = []
        """Prompt and output tokens of each completion, as the server reported them."""
        self.in_flight = self.most_in_flight = 0
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        return sum(self.tokens)

    def __enter__(self) -> CountingProxy:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._forward("GET", None)

            def do_POST(self) -> None:
                self._forward("POST", self.rfile.read(int(self.headers["Content-Length"])))

            def _forward(self, method: str, body: bytes | None) -> None:
                counted = self.path in ("/completion", "/v1/completions", "/v1/chat/completions")
                outer._enter(counted)
                try:
                    address = urlsplit(outer.target)
                    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
                    connection.request(method, self.path, body, {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    status, content = answer.status, answer.read()
                    connection.close()
                finally:
                    outer._leave(counted)
                if counted:
                    outer._count(content)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _enter(self, counted: bool) -> None:
        with self._lock:
            self.in_flight += counted
            self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def _leave(self, counted: bool) -> None:
        with self._lock:
            self.in_flight -= counted

    def _count(self, content: bytes) -> None:
        body = json.loads(content)
        usage = body.get("usage")
        if usage:
            tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        else:
            tokens = body.get("tokens_evaluated", 0) + body.get("tokens_predicted", 0)
        with self._lock:
            self.tokens.append(tokens)
