"""Two ends of a link in memory."""

from itertools import pairwise

from beanstalk_server.link.link import NONCE_BYTES, Link
from beanstalk_server.link.opening import Opening

SECRET = "known to both"


def pieces(data, cuts):
    """The data, cut at some of these places."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def link(*, dials, secret=SECRET, epoch=7, shard=0, accept=None, max_job_size=65535, opened=None, node=None):
    """An end of a link; the leader's leads only that shard."""
    knows = (
        {"shard": shard, "secret": secret, "epoch": epoch}
        if dials
        else {"find": lambda asked: (secret, epoch) if asked == shard else None}
    )
    return Link(
        dials=dials,
        **knows,
        node=node or ("standby" if dials else "leader"),
        nonce=bytes([dials]) * NONCE_BYTES,
        on_output=lambda: None,
        on_open=lambda end: opened.append(end) if opened is not None else None,
        accept=accept and (lambda payload: accept(Opening.decode(payload))),
        max_job_size=max_job_size,
    )


class Wire:
    """What connects two ends: bytes arrive when `run` is called, in pieces that `cut` chooses."""

    def __init__(self, standby, leader, cut=lambda data: [data]):
        self.standby = standby
        self.leader = leader
        self.cut = cut

    def run(self):
        """Carry bytes until there are no more."""
        while True:
            there, back = self.standby.take_output(), self.leader.take_output()
            if not there and not back:
                return
            for end, data in ((self.leader, there), (self.standby, back)):
                for piece in self.cut(data):
                    if piece:
                        end.receive(piece)
