"""Pages, tables and plots of results."""
