"""Deliveries: a job is an HTTP request, and `beanstalk-deliver` sends it when it is due.

Producers need only this, and no HTTP library:

    from beanstalk_client.deliver import Request

    queue.put(Request("https://example.com/hook", json={"order": 17}).to_text(), delay=900)
"""

from __future__ import annotations

from beanstalk_client.deliver.request import Request, RequestError

__all__ = ["Request", "RequestError"]
