"""The listings of docs/client.md run, in their order, at a server."""

import re

import pytest

from harness.servers import ROOT

pytestmark = pytest.mark.slow

LISTINGS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda text: text.strip().splitlines()[-1][:40])
def test_a_listing_runs(run, listing, capsys):
    if "ca.pem" in listing:
        pytest.skip("the same as in docs/protocol-extensions.md; test_blocking.py does what it does")
    address = "{}:{}".format(*run().address)
    namespace = {}
    exec(listing.replace("127.0.0.1:11300", address), namespace)
    if isinstance(namespace.get("queue"), namespace.get("Client", ())):
        namespace["queue"].close()
    for promised in re.findall(r"print\(.*\)  # (.*)", listing):
        assert capsys.readouterr().out == promised + "\n"
