"""Galleries: enrolled subjects and the search among them, in SQLite, by FAISS or in PostgreSQL."""
