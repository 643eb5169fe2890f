"""Durable files: atomic writes, checksums, and claims on folders that several processes share."""
