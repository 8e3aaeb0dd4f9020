"""Maintenance of a store: check it, measure it, prune it, migrate it, and copy it to another store.

All of it goes through the `Store` contract alone, so it works on every store.
"""
