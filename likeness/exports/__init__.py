"""Exports beyond the plain .onnx file: what a smaller one costs, and files for other runtimes."""
