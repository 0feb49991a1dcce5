"""LiteRT (TensorFlow Lite): files in its format are run, not made."""

from octune.backends.litert.opened import interpreter, open_tflite

__all__ = ["interpreter", "open_tflite"]
