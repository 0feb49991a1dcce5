"""Models of transformers, built again from what a saved folder says of them: its own classes and no others.

model = build_transformer("transformers.models.bert.modeling_bert:BertModel", {"model_type": "bert", ...})
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from octune.errors import ArtifactError
from octune.importing import resolve

__all__ = ["build_transformer"]

CLASS = re.compile(r"transformers\.models(\.\w+)+:\w+")
KERNELS = (None, "eager", "sdpa")  # other names of implementations are fetched from the hub, and run


def build_transformer(reference: str, config: dict[str, Any]) -> nn.Module:
    """The architecture with any weights. ArtifactError if what is named is not a model of the library, or a
    setting asks for code from elsewhere.
    """
    import transformers

    made = resolve(reference) if CLASS.fullmatch(reference) else None
    if not (isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)):
        raise ArtifactError(f"{reference} is not the class of a model in transformers.")
    _check(config)
    for key in ("dtype", "torch_dtype", "auto_map", "quantization_config"):
        config.pop(key, None)
    model: nn.Module = made(transformers.AutoConfig.for_model(config.pop("model_type"), **config))
    return model


def _check(config: dict[Any, Any]) -> None:
    for key, value in ((str(key), value) for key, value in config.items()):
        if isinstance(value, dict) and "implementation" not in key:
            _check(value)
        elif "implementation" in key and not (
            value in KERNELS or (isinstance(value, dict) and all(one in KERNELS for one in value.values()))
        ):
            raise ArtifactError(
                f"its configuration asks for {value!r} as {key}, which is code from elsewhere"
            )
