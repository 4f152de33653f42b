"""The clients of a node: each is served here, or routed to the leaders of the shards that it asks."""
