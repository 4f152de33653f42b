"""Several leaders at a time, one of each shard, and the clients that they serve together."""
