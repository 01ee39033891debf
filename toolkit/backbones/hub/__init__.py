"""Networks of the Hugging Face hub, as `transformers` has them."""
