"""Every option: its kind, its default, its checks, and where its value comes from. Imports no other room."""
