"""The kinds of ops that int8 can compute.

A new kind is a file with a subclass of :class:`Kind`, and a place in ``KINDS``. The first kind that
recognises a node has it.
"""

from octune.backends.onnx.kinds.attention import ATTENTION
from octune.backends.onnx.kinds.base import Found, Kind, Tap
from octune.backends.onnx.kinds.conv import CONV, CONV_TRANSPOSE
from octune.backends.onnx.kinds.dense import GEMM, MATMUL
from octune.backends.onnx.kinds.embedding import EMBEDDING
from octune.backends.onnx.kinds.float_only import EINSUM
from octune.backends.onnx.kinds.gru import GRU, RNN
from octune.backends.onnx.kinds.recurrent import LSTM

__all__ = ["KINDS", "Found", "Kind", "Tap"]

KINDS: tuple[Kind, ...] = (MATMUL, GEMM, CONV, CONV_TRANSPOSE, EMBEDDING, ATTENTION, LSTM, GRU, RNN, EINSUM)
