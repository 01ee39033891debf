"""What `likeness export` writes: .onnx files, also smaller ones, and files of sherpa-onnx."""
