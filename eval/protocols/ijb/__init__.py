"""IJB-B and IJB-C: the meta files of a pack, the protocol, and both measured from features."""
