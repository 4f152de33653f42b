"""What operators ask of a server or a node over HTTP."""

import http.client

from prometheus_client.parser import text_string_to_metric_families

from conformance.address import TIMEOUT, connect

HERE = "127.0.0.1:0"


class Operator(http.client.HTTPConnection):
    """A connection to any address, over any socket."""

    def __init__(self, address, context=None, header=b""):
        super().__init__("localhost", timeout=TIMEOUT)
        self.address, self.context, self.header = address, context, header

    def connect(self):
        self.sock = connect(self.address)
        self.sock.sendall(self.header)
        if self.context is not None:
            self.sock = self.context.wrap_socket(self.sock, server_hostname="localhost")

    def get(self, path, headers=None):
        self.request("GET", path, headers=headers or {})
        response = self.getresponse()
        return response.status, response.read().decode()


def place(server, index=0):
    """Where operators come in."""
    return server.call(lambda: server.server._http.listeners.addresses[index])


def ask(address, path, headers=None, **how):
    operator = Operator(address, **how)
    try:
        return operator.get(path, headers)
    finally:
        operator.close()


def figures(address, **how):
    """The samples of the metrics of a server or a node."""
    status, body = ask(address, "/metrics", **how)
    assert status == 200
    return samples(body)


def samples(text, read=text_string_to_metric_families):
    """The samples of a page, by name and the values of labels."""
    found = {}
    for family in read(text):
        for each in family.samples:
            key = (each.name, *each.labels.values())
            assert key not in found, f"{key} is there twice"
            found[key] = each.value
    return found
