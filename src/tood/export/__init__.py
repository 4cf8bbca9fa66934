"""Export: a calibrated score as ONNX or as a torch module."""
