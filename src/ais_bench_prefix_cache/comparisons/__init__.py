"""Two runs or two sweeps beside each other: what differs, by how much, and whether that is more than noise."""
