"""The shared core of Likeness: losses, backbones, recipes, training, embedding, command line."""
