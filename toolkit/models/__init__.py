"""Trained models: checkpoints, embedders, and their form as one ONNX file."""
