"""The listings of docs/client.md run, in their order, at a server."""

import re
from pathlib import Path

import pytest
from tls_peers import Files, client_certificate

from beanstalk_server import UserConfig
from beanstalk_server.access.accounts import hash_of_token, new_token
from harness.servers import ROOT

pytestmark = pytest.mark.slow

LISTINGS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda text: text.strip().splitlines()[-1][:40])
def test_a_listing_runs(run, listing, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "ca.pem" in listing:
        token = new_token()
        user = UserConfig(name="shop", produce=("*",), token_sha256=(hash_of_token(token),))
        server = run(listeners=(Files(tmp_path).listener(mutual=True, auth="token"),), users=(user,))
        Path("clients.pem").rename("ca.pem")
        shown = client_certificate("shop.example.com")
        shown.private_key_pem.write_to_path("client.key")
        shown.cert_chain_pems[0].write_to_path("client.pem")
        address = f"localhost:{server.address[1]}"
        listing = listing.replace("queue.example.com:11301", address).replace("…", token)
    else:
        address = "{}:{}".format(*run().address)
    namespace = {}
    exec(listing.replace("127.0.0.1:11300", address), namespace)
    if isinstance(namespace.get("queue"), namespace.get("Client", ())):
        namespace["queue"].close()
    for promised in re.findall(r"print\(.*\)  # (.*)", listing):
        assert capsys.readouterr().out == promised + "\n"
