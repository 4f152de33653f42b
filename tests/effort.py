"""How much the tests draw: the examples of a property test, the seeds of a random one.

The Hypothesis profile decides: `fast` for `make check`, `ci` for `make test`, `deep` for `make test-all`. Tests name
the number that the profile `ci` draws.
"""

import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
PROFILES = {"fast": 20, "ci": 100, "deep": 500}  # max_examples, which is also the percentage that others draw
SEED = os.environ.get("SEED") or "0"
if not SEED.isdecimal():
    sys.exit(f"SEED is {SEED!r}: must be a whole number")
BASE_SEED = int(SEED)  # the first seed of this run


def examples(number):
    """The number of examples under the current profile, for a test that draws `number` of them under `ci`."""
    return max(1, number * settings.default.max_examples // 100)


def some_of(cases, number, seed):
    """As many cases of a sequence as `examples(number)`, drawn with this seed, in their order; all if that is more."""
    drawn = random.Random(seed).sample(range(len(cases)), min(examples(number), len(cases)))
    return [cases[index] for index in sorted(drawn)]


def seeds(number, test=""):
    """The seeds that have failed in a test, then as many others as it would draw examples, beginning at BASE_SEED.

    Args:
        test: the file and the name of the test, as in failing_seeds.txt.
    """
    run = range(BASE_SEED, BASE_SEED + examples(number))
    failed = [seed for name, seed, _ in failing_seeds() if name == test and seed not in run]
    return [*dict.fromkeys(failed), *run]


def seeded(number):
    """Run a test once for each of `seeds(number)`, with the argument `seed`."""

    def parametrized(test):
        path = Path(test.__code__.co_filename).relative_to(TESTS).as_posix()
        return pytest.mark.parametrize("seed", seeds(number, f"{path}::{test.__name__}"))(test)

    return parametrized


def failing_seeds(path=TESTS / "failing_seeds.txt"):
    """The lines of failing_seeds.txt: (test, seed, reason)."""
    lines = [line.split(maxsplit=2) for line in path.read_text().splitlines() if not line.startswith("#")]
    return [(test, int(seed), reason) for test, seed, reason in lines]
