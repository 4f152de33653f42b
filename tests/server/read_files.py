"""An event loop that only knows which files are to be read from, for tests of what asks it for that."""


class ReadFiles:
    """Records the files, and what is to be called when they can be read."""

    def __init__(self):
        self.readers = {}

    def add_reader(self, descriptor, callback):
        self.readers[descriptor] = callback

    def remove_reader(self, descriptor):
        del self.readers[descriptor]
