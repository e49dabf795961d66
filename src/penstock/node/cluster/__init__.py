"""One node among others: membership, slots, the catalog of all, and what crosses owners."""
