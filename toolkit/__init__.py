"""The shared core of Likeness: losses, backbones, recipes, training, embedding, the command line."""
