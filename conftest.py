"""Runs every Python block of the README and of the documentation as a test."""

from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    pattern="*.md",
    excludes=["CHANGELOG.md"],
).pytest()
