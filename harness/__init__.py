"""What tests, conformance and bench share: servers, a client on a plain socket, and waiting."""
