"""Listeners, TLS, PROXY headers and authentication: everything before a client is admitted."""
