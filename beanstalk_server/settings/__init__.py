"""Every option: its kind, its default, its checks, and the source of its value. Imports only units from `queue`."""
