"""The pages: each a function from a visit to a response."""

from beanstalk_client.console.pages import (
    clients,
    events,
    failures,
    job,
    orders,
    overview,
    schedules,
    signing,
    tube,
    tubes,
)

__all__ = [
    "clients",
    "events",
    "failures",
    "job",
    "orders",
    "overview",
    "schedules",
    "signing",
    "tube",
    "tubes",
]
