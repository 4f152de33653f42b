"""Sockets and TLS in processes of their own, beside the one with the jobs. Imported only with --io-processes."""
