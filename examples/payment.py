"""A payment that is tried again for a day, and that an operator looks at when all tries have failed.

The worker only tells the truth: paid, or not paid. The server lets a payment that has failed wait, for five minutes and
then twice as long each time. After the ninth time, which is after 21 hours, it is in the dead tube of the payments,
with its history; an operator sends it back when the reason is gone. Run it while a server is running that
knows the dead tube (a minute takes a millisecond here):

    beanstalk-server --config examples/policies.toml
    python examples/payment.py [HOST:PORT]

It prints:

    the bank is down
    tried 9 times within 21 hours
    an operator looks: order 17 came from payments; its last failure: released
    the bank is up, and 1 payment is sent back
    order 17 is paid
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from beanstalk_client import Client, TimedOutError

PAYMENTS = "payments"
DEAD = "payments-that-failed"

TRIES = 9
BACKOFF = 5
"""Minutes. The policy of the tube could say both as well, for all payments."""


class Payments:
    """The payments of a shop.

    Args:
        payments: uses and watches the tube of the payments.
        dead: uses its dead tube.
        minute: how long a minute is, in seconds; at the end of a test it need not be long.
    """

    def __init__(self, payments: Client[str], dead: Client[str], minute: float) -> None:
        self.payments = payments
        self.dead = dead
        self.minute = minute

    def order(self, number: int) -> None:
        self.payments.put_with(f"order {number}", tries=TRIES, backoff=BACKOFF * self.minute)

    def work(self, pay: Callable[[str], bool]) -> int:
        """The worker: try to pay, until nothing has been left for a day; return how often it has tried."""
        tries = 0
        while True:
            try:
                (job,) = self.payments.reserve_batch(1, timeout=24 * 60 * self.minute)
            except TimedOutError:
                return tries
            tries += 1
            if pay(job.body):
                self.payments.delete(job)
            else:
                self.payments.release(job)

    def look(self) -> str:
        """Describe the first payment in the dead tube, as an operator sees it."""
        job = self.dead.peek_ready()
        history = dict(self.dead.stats_job(job))
        return f"{job.body} came from {history['origin']}; its last failure: {history['reason']}"

    def send_back(self) -> int:
        """Send all payments in the dead tube back, to be tried again; return their number."""
        return self.payments.redrive(DEAD, 1000)


def story(payments: Payments, clock: Callable[[], float]) -> None:
    last = began = clock()

    def bank_is_down(_: str) -> bool:
        nonlocal last
        last = clock()
        return False

    def bank_is_up(payment: str) -> bool:
        print(f"{payment} is paid")
        return True

    payments.order(17)
    print("the bank is down")
    tries = payments.work(bank_is_down)
    print(f"tried {tries} times within {(last - began) / payments.minute // 60:.0f} hours")
    print(f"an operator looks: {payments.look()}")
    print(f"the bank is up, and {payments.send_back()} payment is sent back")
    payments.work(bank_is_up)


if __name__ == "__main__":
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11300").rpartition(":")
    address = (host, int(port))
    with Client(address, use=PAYMENTS, watch=PAYMENTS) as queue, Client(address, use=DEAD) as dead:
        story(Payments(queue, dead, 0.001), time.monotonic)
