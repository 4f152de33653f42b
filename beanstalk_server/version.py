"""The version, in its only place."""

VERSION = "0.1.0"
