from .contract import (
    Maintenance as Maintenance,
    Store as Store,
)
from .head_filter import (
    ALL_SESSIONS as ALL_SESSIONS,
    HeadFilter as HeadFilter,
    Order as Order,
    filter_newest as filter_newest,
    page_of as page_of,
    place_of as place_of,
)
from .memory import MemoryStore as MemoryStore
from .records import (
    NO_BLOBS as NO_BLOBS,
    Blobs as Blobs,
    Commit as Commit,
    Entry as Entry,
    Head as Head,
    Loaded as Loaded,
    Record as Record,
    SessionBasics as SessionBasics,
    Size as Size,
    Snapshot as Snapshot,
    Status as Status,
)
from .url import (
    HIDDEN as HIDDEN,
    hide_secrets as hide_secrets,
    open_store as open_store,
    parse_url as parse_url,
    store_class as store_class,
    without_secrets as without_secrets,
)
from .wrapper import (
    OPERATIONS as OPERATIONS,
    Work as Work,
    WrappedStore as WrappedStore,
)
