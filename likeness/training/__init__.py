"""Before and after a training: data, held-out items, the tables of papers, the demo."""
