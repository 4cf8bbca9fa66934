"""TOOD inside other software: ONNX runtimes, and libraries that train or detect. Each module needs its own extra."""
