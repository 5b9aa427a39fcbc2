"""What has no subject of its own: errors, strict JSON, random streams, interruptions, tables."""
