"""Users, their rights to tubes, and the authentication of clients (docs/access.md)."""
