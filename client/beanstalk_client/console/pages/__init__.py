"""The pages: each a function from a visit to a response."""

from beanstalk_client.console.pages import (
    clients,
    events,
    failures,
    group,
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
    "group",
    "job",
    "orders",
    "overview",
    "schedules",
    "signing",
    "tube",
    "tubes",
]
