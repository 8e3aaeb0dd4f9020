"""The suite that every store passes: the promises of `Store` as tests that anyone can run on their own store.

Subclass `StoreConformance` in a test module, and give the URL of a fresh store; this needs nothing but pytest:

    from stateroom.store.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def url(self, tmp_path):
            return f"mystore://{tmp_path}/rooms"

The scheme must be registered (see `stateroom.store.url`). Set `shared = False` if two stores that are open on one URL
do not see the same sessions, `durable = False` if sessions are lost when the store closes, and `increments = 10` if
writing is slow. To have pytest show the values of a failed comparison, put
`pytest.register_assert_rewrite("stateroom.store.conformance")` in `conftest.py`. With Hypothesis installed,
`stateroom.store.conformance.stateful` looks for a sequence of calls that a store answers wrongly.
"""

from stateroom.store.conformance.appends import AppendPromises
from stateroom.store.conformance.blobs import BlobPromises
from stateroom.store.conformance.concurrency import ConcurrencyPromises
from stateroom.store.conformance.leases import LeasePromises
from stateroom.store.conformance.lifetimes import LifetimePromises
from stateroom.store.conformance.listings import ListingPromises
from stateroom.store.conformance.maintenance import MaintenancePromises
from stateroom.store.conformance.reads import ReadPromises
from stateroom.store.conformance.transfer import TransferPromises


class StoreConformance(
    AppendPromises,
    ReadPromises,
    ListingPromises,
    LeasePromises,
    BlobPromises,
    LifetimePromises,
    TransferPromises,
    MaintenancePromises,
    ConcurrencyPromises,
):
    """What a store promises. A subclass gives the `url` of a fresh store."""
