"""The suite that every store passes."""

from stateroom.store.conformance.suite import StoreConformance

__all__ = ["StoreConformance"]
