"""Limits that several processes share: the ledger, the leases of its members, and their renewal."""
