"""How many examples a property test draws.

The Hypothesis profile decides: `fast` for `make check`, `ci` for `make test`, `deep` for `make test-all`. Tests name
the number that the profile `ci` draws.
"""

from hypothesis import settings

PROFILES = {"fast": 20, "ci": 100, "deep": 1000}  # max_examples, which is also the percentage that others draw


def examples(number):
    """The number of examples under the current profile, for a test that draws `number` of them under `ci`."""
    return max(1, number * settings.default.max_examples // 100)
