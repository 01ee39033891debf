"""Galleries: enrolled subjects and the search among them, in memory, by FAISS or in LanceDB."""
