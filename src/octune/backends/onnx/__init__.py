"""ONNX: plans become Q/DQ graphs; ONNX Runtime and OpenVINO run them."""

from octune.backends.onnx.backend import OnnxBackend

__all__ = ["OnnxBackend"]
