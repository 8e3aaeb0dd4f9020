"""The conformance suite for stores."""

from stateroom.store.conformance.suite import StoreConformance

__all__ = ["StoreConformance"]
