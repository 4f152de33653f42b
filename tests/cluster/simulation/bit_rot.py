"""Bits that flip silently in the files of an engine: which there are, and who has read one."""

from collections import defaultdict

LEAST = 1000
"""A shorter file is chosen as often as one with this many bytes."""

OF_LEASE = ("renewals", "node", "address", "secret", "ttl", "successor", "lineage")
"""What may flip in a lease, except the epoch and the position: these would come again, as after a wipe."""


class Flip:
    """One bit of a file in one server.

    Args:
        content: of the file, with the flipped bit.
        at: the offset of its byte.
        bit: of that byte, as a mask.
    """

    def __init__(self, shard, name, content, at, bit):
        self.shard = shard
        self.name = name
        self.content = bytes(content)
        self.at = at
        self.bit = bit
        self.is_refused = False

    @property
    def is_in_segment(self):
        """Whether a job may depend on it. The mark of a stop only confirms what the segments say."""
        return "segment." in self.name

    def is_in(self, data, offset=0):
        """Whether these bytes of a file of its name have it; None if its byte is not among them."""
        if not offset <= self.at < offset + len(data):
            return None
        known = self.content[offset : offset + len(data)]
        return bytes(data[: len(known)]) == known

    def __str__(self):
        return f"byte {self.at} of {self.name} of shard {self.shard}, bit {self.bit:#x}"


class BitRot:
    """The flips of a run, one at a time.

    Args:
        servers: of the engine.
    """

    def __init__(self, servers):
        self.servers = servers
        self.flips = []
        self.read = defaultdict(set)  # (process, shard) -> flips in what it has read in this takeover

    def _files(self, flip):
        """The files that have the flipped bit, in all servers."""
        name = flip.name.rpartition("/")[2]  # a rewritten segment moves to the top
        for dataset in self.servers.datasets():
            for each in {flip.name, name}:
                _, data = dataset.of(flip.shard).files.get(each, (0, b""))
                if flip.is_in(data):
                    yield data

    def is_left(self, flip):
        """Whether any server has it."""
        return any(True for _ in self._files(flip))

    def strike(self, rng):
        """Flip a bit, unless one is left; return it."""
        if any(map(self.is_left, self.flips)):
            return None
        dataset = rng.choice([*[self.servers.primary] * 2, *self.servers.datasets()])
        files = [
            (shard, name, data)
            for shard, journal in dataset.journals.items()
            for name, (_, data) in journal.files.items()
            if data
        ]
        if not files:
            return None
        shard, name, data = rng.choices(files, [max(len(data), LEAST) for *_, data in files])[0]
        at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        data[at] ^= bit
        flip = Flip(shard, name, data, at, bit)
        self.flips.append(flip)
        return flip

    def strike_lease(self, rng):
        """Flip a bit of a lease: it is another leader's then, and the next one writes its own. Return what it was."""
        shard, journal = rng.choice(list(self.servers.primary.journals.items()))
        name = rng.choice(OF_LEASE)
        value = getattr(journal.lease, name)
        if not value:
            return None
        if isinstance(value, int):
            changed = value ^ 1 << rng.randrange(32)  # a TTL of years keeps a lease whose leader dies before a renewal
        else:
            at = rng.randrange(len(value))
            changed = value[:at] + chr(ord(value[at]) ^ 1 << rng.randrange(7)) + value[at + 1 :]
        journal.lease = journal.lease._replace(**{name: changed})
        return f"{name} {value!r} of the lease of shard {shard}, to {changed!r}"

    def restore(self):
        """Flip back, in all servers, as from a backup."""
        for flip in self.flips:
            for data in list(self._files(flip)):
                data[flip.at] ^= flip.bit

    def note_read(self, process, shard, name, offset, data):
        """Note what a process has been given by the engine."""
        found = self.read[process, shard]
        for flip in self.flips:
            if flip.shard == shard and flip.name.rpartition("/")[2] == name:
                has_it = flip.is_in(data, offset)
                if has_it:
                    found.add(flip)
                elif has_it is not None:
                    found.discard(flip)

    def counts(self):
        """How many have flipped, and what became of them."""
        refused = sum(flip.is_refused for flip in self.flips)
        left = sum(not flip.is_refused and self.is_left(flip) for flip in self.flips)
        return {"flipped": len(self.flips), "refused": refused, "replaced": len(self.flips) - refused - left} | {
            "never read": left
        }
