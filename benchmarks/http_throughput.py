"""How many requests a second does the HTTP core manage, and does its memory grow with their number?

    python benchmarks/http_throughput.py

A server in another process answers every completion at once. Prints requests a second and the peak memory after 1,000 and
after 50,000 requests.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time

from mill.api.request import GENERATE, Request, generation_options
from mill.api.response import Response
from mill.models.openai_compat.model import OpenAICompatModel

PORT = 18399


def serve() -> None:
    """An answer of fixed bytes, without parsing: the client is what is measured."""
    import asyncio

    body = (
        b'{"choices": [{"text": " fine", "finish_reason": "stop"}], "usage": {"prompt_tokens": 4, "completion_tokens": 1}}'
    )
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                await reader.readexactly(length)
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", PORT)
        await server.serve_forever()

    asyncio.run(main())


def main() -> int:
    server = multiprocessing.Process(target=serve, daemon=True)
    server.start()
    time.sleep(1)
    model = OpenAICompatModel("m", f"http://127.0.0.1:{PORT}", concurrency=32)
    options = generation_options(max_gen_toks=4)
    for count in (1_000, 20_000, 50_000):
        started = time.perf_counter()

        async def work(number: int) -> Response:
            return await model._generate(Request(GENERATE, f"prompt {number}", options=options))

        done = sum(response.text == " fine" for _, response in model.client.run_all(range(count), work))
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{count:>7} requests  {done} right  {count / seconds:>7.0f} /s  peak memory {peak:.0f} MiB", flush=True)
    server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
