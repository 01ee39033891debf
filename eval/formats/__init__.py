"""Files of trials, scores, embeddings, subjects: read with bounds, written whole or not at all."""
