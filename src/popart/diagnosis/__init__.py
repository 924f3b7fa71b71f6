"""Diagnosis of a stream of targets: are they too large, do they drift, and which rule to begin with?"""

from popart.diagnosis.report import Diagnosis, Finding, diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
