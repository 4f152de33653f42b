"""An engine in PostgreSQL. Imported only if a URL names it, because it needs the extra `postgresql`."""
