"""Limits that several processes share."""
