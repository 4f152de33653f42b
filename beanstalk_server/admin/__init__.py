"""Metrics, statistics and health checks over HTTP, for operators."""
