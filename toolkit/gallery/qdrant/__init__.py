"""A gallery in Qdrant: its methods, and the points that it is kept in."""
