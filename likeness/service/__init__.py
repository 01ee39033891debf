"""`likeness serve`: verification and a gallery over REST, and one web page for it."""
