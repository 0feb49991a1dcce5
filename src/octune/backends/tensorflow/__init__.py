"""The TensorFlow backend."""

from octune.backends.tensorflow.backend import TensorFlowBackend

__all__ = ["TensorFlowBackend"]
