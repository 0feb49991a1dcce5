"""What is handed over in place of a module and runs elsewhere: as native code, on OpenVINO.

    class CompiledModel(Front): ...     # forward() is all that is left to write

To its user it is the module that it was made from: attributes that it does not have are those of ``eager``,
the int8 model in PyTorch, which also takes the calls that cannot run there.
"""

from __future__ import annotations

from typing import Any, Self

from torch import nn

__all__ = ["Front"]


class Front(nn.Module):
    """A module that only answers. ``eager`` is None where nothing could build it again."""

    def __init__(self, eager: nn.Module | None) -> None:
        super().__init__()
        self.eager = eager
        self.eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"A {type(self).__name__} cannot be pickled. Save it with result.save(folder), load it with "
            "octune.load(folder)."
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            eager = self.__dict__.get("_modules", {}).get("eager")
            if eager is None:
                raise
            return getattr(eager, name)  # model.config and the like
