"""Who may do what: users, their rights to tubes, and how a client proves to be one of them (docs/access.md)."""
