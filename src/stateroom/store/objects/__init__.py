"""`s3://`, `gs://`, `az://`, `file://`: sessions as objects, for state that is large or seldom used."""

from stateroom.store.objects.store import ObjectStore

__all__ = ["ObjectStore"]
