"""Ops that are functions: ``F.linear(x, self.weight)``, ``x @ self.weight``, attention with packed weights.

    model, floats = with_functions(model, call)     # functions are now children of the weight's owner

``find`` sees on one batch which functions a model calls with its own weights, ``calls`` knows which module
would compute the same, ``install`` puts such modules into a copy, and ``weights`` has what leads the model's
own code to them.
"""
