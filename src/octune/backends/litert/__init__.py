"""LiteRT (TensorFlow Lite): files in its format are run, not made."""

from octune.backends.litert.opened import open_tflite

__all__ = ["open_tflite"]
