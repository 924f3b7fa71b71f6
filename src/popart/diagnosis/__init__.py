"""Diagnosis of a stream of targets; `popart.diagnose` makes it."""

from popart.diagnosis.report import Diagnosis
from popart.diagnosis.words import Finding

__all__ = ["Diagnosis", "Finding"]
