"""A session with all kinds of bodies, and every way to them."""

from stateroom.state import digest_of
from stateroom.store import Commit, Entry, Head, Snapshot, Store


async def fill(store: Store, body: bytes) -> None:
    """A session in which every body is this one."""
    head = Head("room", "env", "owner", 0.0, 1e9, 1)
    await store.create(head, [Entry(1, "seed", 0.0, body)], Snapshot(1, body), {digest_of(body): body})
    blobs = {"second": body}
    await store.append(Commit("room", Entry(2, "call", 1.0, body, "a"), snapshot=Snapshot(2, body), blobs=blobs))


async def bodies(store: Store) -> list[bytes]:
    """Every body of the session, by every way to it."""
    loaded, newest, found = await store.load("room", 1), await store.load("room"), await store.find_call("room", "a")
    assert loaded.snapshot
    assert newest.snapshot
    assert found
    record = await store.maintenance.export("room")
    return [
        *[entry.body for entry in await store.entries("room")],
        loaded.snapshot.body,
        newest.snapshot.body,
        found.body,
        *(await store.blobs("room", [*record.blobs, "none"])).values(),
        *[entry.body for entry in record.entries],
        *[snapshot.body for snapshot in record.snapshots],
        *record.blobs.values(),
    ]
