"""Where clients come in: listeners, TLS, PROXY headers, greetings, and clients that are not known yet."""
