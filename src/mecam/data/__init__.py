"""Labelled images in domains: folders, the known benchmarks, the embedded set; splits and sampling."""

from mecam.data.domains import DataError, DomainSet

__all__ = ["DataError", "DomainSet"]
