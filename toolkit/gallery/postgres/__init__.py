"""A gallery in PostgreSQL with pgvector: its methods, its tables, and the connection to them."""
