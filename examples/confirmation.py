"""An e-mail that is sent once, though three producers ask for it.

The shop, the bank's callback and a nightly check each make sure that an order is confirmed, and none knows of the
others. The key of the job says what it is about; and because the tube holds its keys for five minutes, the answer is
the same when the e-mail is out already. Run it while a server is running that knows the policy:

    beanstalk-server --config examples/policies.toml
    python examples/confirmation.py [HOST:PORT]

It prints:

    the shop asks for the e-mail
    the bank asks for the e-mail: it has been requested already
    dear customer, we have your order 17
    the check asks for the e-mail: it has been requested already
    1 e-mail has been sent
"""

from __future__ import annotations

import sys

from beanstalk_client import Client, ExistsError, TimedOutError

TUBE = "confirmations"


def ask(queue: Client[str], who: str, order: str) -> None:
    """Ask for the e-mail about an order, unless another producer has."""
    try:
        queue.put_keyed(order, f"order {order}")
    except ExistsError:
        print(f"{who} asks for the e-mail: it has been requested already")
    else:
        print(f"{who} asks for the e-mail")


def work(queue: Client[str]) -> int:
    """The worker: send what is there; return how many e-mails that were."""
    sent = 0
    while True:
        try:
            (job,) = queue.reserve_batch(1, timeout=0)
        except TimedOutError:
            return sent
        print(f"dear customer, we have your {job.body}")
        sent += 1
        queue.delete(job)


def story(shop: Client[str], bank: Client[str], check: Client[str], worker: Client[str], order: str) -> None:
    ask(shop, "the shop", order)
    ask(bank, "the bank", order)
    sent = work(worker)
    ask(check, "the check", order)
    sent += work(worker)
    print(f"{sent} e-mail has been sent")


if __name__ == "__main__":
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11300").rpartition(":")
    address = (host, int(port))
    with (
        Client(address, use=TUBE) as shop,
        Client(address, use=TUBE) as bank,
        Client(address, use=TUBE) as check,
        Client(address, watch=TUBE) as worker,
    ):
        story(shop, bank, check, worker, "17")
