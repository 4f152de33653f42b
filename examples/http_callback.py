"""A callback by HTTP at a given second, which can be cancelled until then.

A shop needs a callback for each unpaid order at a given time. Each callback is a job that is due at that time, with a
key that the shop can compute again; `beanstalk-deliver` sends it to the shop, signed, so that the shop can verify the
sender. Run it while a server is running (it starts the shop and beanstalk-deliver itself):

    python examples/http_callback.py [HOST:PORT]

It prints:

    second 0: callbacks for orders 17, 18 and 19 are due at seconds 1, 2 and 3
    second 0: order 18 is paid, so its callback is cancelled
    second 1: POST /orders/17, signed
    second 3: POST /orders/19, signed
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from beanstalk_client import Client
from beanstalk_client.deliver import Request

TUBE = "callbacks"


class Shop(ThreadingHTTPServer):
    """Takes callbacks, and prints them.

    Attributes:
        began: second 0, in seconds since 1970.

    Args:
        second: how long a second is; in a test it need not be long.
        callbacks: how many it waits for.
    """

    def __init__(self, second: float, callbacks: int) -> None:
        super().__init__(("127.0.0.1", 0), Callback)
        self.began = time.time()
        self.second = second
        self.missing = threading.Semaphore(0)
        self.callbacks = callbacks
        self.secret = secrets.token_bytes(32)

    def url(self, order: int) -> str:
        return f"http://127.0.0.1:{self.server_port}/orders/{order}"

    def wait(self) -> None:
        for _ in range(self.callbacks):
            if not self.missing.acquire(timeout=60):
                raise TimeoutError("a callback did not arrive")


class Callback(BaseHTTPRequestHandler):
    server: Shop

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        due = json.loads(body)["second"]
        in_time = time.time() >= self.server.began + due * self.server.second
        print(
            f"second {due}: {self.command} {self.path}{'' if in_time else ', too early'}, "
            f"{'signed' if self.is_signed(body) else 'with a wrong signature'}",
            flush=True,
        )
        self.send_response(204)
        self.end_headers()
        self.server.missing.release()

    def is_signed(self, body: bytes) -> bool:
        """Whether the sender has the secret. The library `standardwebhooks` does the same, and also checks the time."""
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
        wanted = base64.b64encode(hmac.new(self.server.secret, signed, hashlib.sha256).digest()).decode()
        return any(
            hmac.compare_digest(each, f"v1,{wanted}") for each in self.headers.get("webhook-signature", "").split()
        )

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what has come is printed already."""


@contextlib.contextmanager
def deliverer(server: str, shop: Shop) -> Iterator[None]:
    """Runs beanstalk-deliver, with the secret that it shares with the shop."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "secrets"
        path.write_text(f"127.0.0.1 whsec_{base64.b64encode(shop.secret).decode()}\n")
        os.chmod(path, 0o600)
        command = f"-m beanstalk_client.deliver --tube {TUBE} --server {server} --secrets {path}"
        # The shop is on this machine, which is forbidden otherwise.
        options = "--allow-net 127.0.0.0/8 --log-level warning"
        process = subprocess.Popen([sys.executable, *command.split(), *options.split()])
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def story(server: str, second: float = 1.0) -> None:
    with Client(server, use=TUBE) as queue, Shop(second, callbacks=2) as shop, deliverer(server, shop):
        threading.Thread(target=shop.serve_forever, daemon=True).start()
        shop.began = time.time()
        for due, order in enumerate((17, 18, 19), 1):
            request = Request(shop.url(order), json={"order": order, "second": due})
            at = datetime.fromtimestamp(shop.began + due * second, UTC)
            queue.put_with(request.to_text(), key=f"order-{order}", at=at)
        print("second 0: callbacks for orders 17, 18 and 19 are due at seconds 1, 2 and 3", flush=True)
        queue.cancel_keyed("order-18")
        print("second 0: order 18 is paid, so its callback is cancelled", flush=True)
        shop.wait()
        shop.shutdown()


if __name__ == "__main__":
    story(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11300")
