"""Scrapes the metrics of a server, as Prometheus does, while it is measured."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.generator import LoadError

WITHIN = 20.0
"""Seconds within which a scrape must be answered."""


class Scraper:
    """Scrapes a server each this many seconds, in a thread of its own.

    Args:
        port: where the server answers HTTP.
        interval: seconds from one scrape to the next.
    """

    def __init__(self, port: int, interval: float) -> None:
        self.scrapes = 0
        self.size = 0  # bytes of the last answer
        self.failure = ""
        self._port = port
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper")

    def start(self) -> None:
        """Scrape from now on, first at once."""
        self._thread.start()

    def stop(self) -> None:
        """Scrape no more.

        Raises:
            LoadError: a scrape has failed, or there was none.
        """
        self._stop.set()
        self._thread.join()
        if self.failure or not self.scrapes:
            raise LoadError(self.failure or "nothing has been scraped")

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=WITHIN)
        try:
            while not self._stop.is_set():
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                self.size = len(answer.read())
                if answer.status != http.HTTPStatus.OK:
                    self.failure = f"a scrape was answered {answer.status}"
                    return
                self.scrapes += 1
                self._stop.wait(self._interval)
        except (OSError, http.client.HTTPException) as error:
            self.failure = f"a scrape has failed: {error}"
        finally:
            connection.close()


@contextmanager
def scraped(port: int, interval: float) -> Iterator[Scraper]:
    """Scrape a server meanwhile.

    Raises:
        LoadError: a scrape has failed.
    """
    scraper = Scraper(port, interval)
    scraper.start()
    try:
        yield scraper
    finally:
        scraper.stop()
