"""What people wrap modules in: ``torch.compile``, ``DataParallel`` and the like.

    model, notes = unwrapped(model)         # the module that was wrapped, and what was taken off

Such a wrapper hides what is in it: compiled code does not call the modules that it was made from, so none of
them can be watched or replaced, and every name gets a prefix that the user never wrote. What is inside
computes the same.
"""

from __future__ import annotations

from torch import nn

__all__ = ["unwrap_parts", "unwrapped"]

# Where each keeps what it wraps. By name, as importing the compiler takes seconds.
_WRAPPERS = {
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.optim.swa_utils.AveragedModel": "module",
}
_TITLES = {"OptimizedModule": "torch.compile"}


def unwrapped(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """The module itself, whatever it is wrapped in, and a note on that."""
    taken_off = []
    while (wrapper := _wrapper_of(model)) is not None:
        taken_off.append(wrapper)
        model = model.get_submodule(_WRAPPERS[wrapper])
    return model, _notes("the model", taken_off)


def unwrap_parts(model: nn.Module) -> list[str]:
    """Put what is inside in the place of parts that are wrapped; returns a note on that."""
    taken_off = []
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if (wrapper := _wrapper_of(child)) is not None:
                taken_off.append(wrapper)
                parent._modules[name], _ = unwrapped(child)
    return _notes("parts of the model", sorted(set(taken_off)))


def _wrapper_of(module: nn.Module) -> str | None:
    """Which wrapper a module is; a subclass that computes something of its own is not one."""
    for base in type(module).__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        if name in _WRAPPERS and getattr(type(module), "forward", None) is getattr(base, "forward", None):
            return name
    return None


def _notes(what: str, wrappers: list[str]) -> list[str]:
    if not wrappers:
        return []
    names = [wrapper.rpartition(".")[2] for wrapper in wrappers]
    titles = ", ".join(_TITLES.get(name, name) for name in names)
    return [
        f"{what}: taken out of {titles}, so that ops inside can be replaced; fp32 is timed without it too"
    ]
