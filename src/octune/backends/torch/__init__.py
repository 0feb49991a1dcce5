"""PyTorch: the user's unmodified ``nn.Module``, quantized module by module, compiled at the end where that is
faster.
"""

from octune.backends.torch.backend import TorchBackend

__all__ = ["TorchBackend"]
