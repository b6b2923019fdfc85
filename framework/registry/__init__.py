"""The registry and how it finds what it holds."""

from framework.registry.candidate import Candidate
from framework.registry.registry import Registry

__all__ = ["Candidate", "Registry"]
