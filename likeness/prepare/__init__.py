"""`likeness prepare`: data sets with an open download, fetched, verified and unpacked."""
