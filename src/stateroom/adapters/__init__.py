"""Other frameworks on our stores: each package puts one of theirs on the `Store` contract, and needs its extra."""
