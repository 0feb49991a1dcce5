"""Equations of einsum as matrix products.

product_of("bij,jk->bik", which=1, x_ndim=3, weight_ndim=2)   # how its operands and its result are permuted
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Product", "product_of", "terms_of"]


@dataclass(frozen=True, slots=True)
class Product:
    """An einsum as a matrix product: how its operands and its result are permuted."""

    before: tuple[int, ...]  # of x: what is kept, then what is summed over
    contracted: int
    order: tuple[int, ...]  # of the weight: outputs, then what is summed over
    outputs: int
    after: tuple[int, ...]  # of the result


@lru_cache(maxsize=256)
def product_of(equation: str, which: int, x_ndim: int, weight_ndim: int) -> Product | None:
    terms = terms_of(
        equation.replace(" ", ""), (weight_ndim, x_ndim) if which == 0 else (x_ndim, weight_ndim)
    )
    if terms is None:
        return None
    weight, x, result = terms[which], terms[1 - which], terms[2]
    if any(len(set(term)) != len(term) for term in terms):
        return None
    summed = [letter for letter in weight if letter in x and letter not in result]
    outer = [letter for letter in weight if letter not in x]
    kept = [letter for letter in x if letter not in weight]
    if not summed or not outer or set(result) != {*outer, *kept}:
        return None  # a letter of all three is a batch of products
    made = [*kept, *outer]
    return Product(
        tuple(x.index(letter) for letter in (*kept, *summed)),
        len(summed),
        tuple(weight.index(letter) for letter in (*outer, *summed)),
        len(outer),
        tuple(made.index(letter) for letter in result),
    )


def terms_of(equation: str, ndims: tuple[int, int]) -> tuple[str, str, str] | None:
    """The letters of both operands and of the result, with letters for what an ellipsis stands for."""
    operands, arrow, result = equation.partition("->")
    terms = operands.split(",")
    if not arrow or len(terms) != 2:
        return None
    free = [letter for letter in string.ascii_letters if letter not in equation]
    most = 0
    for place, (term, ndim) in enumerate(zip(terms, ndims, strict=True)):
        if "..." in term:
            count = ndim - len(term) + 3
            most = max(most, count)
            terms[place] = term.replace("...", "".join(free[:count]))
        if len(terms[place]) != ndim:
            return None
    return terms[0], terms[1], result.replace("...", "".join(free[:most]))
