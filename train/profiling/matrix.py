"""Floating-point operations of matrix products, from the shapes that a profiler notes; a multiply-add is two."""
import math
import re

PRODUCTS = re.compile(r"(Batch)?MatMul(V\d|Common)?|Mm|Custom \(MatMul\)", re.IGNORECASE)
SHAPE = re.compile(r"\[([\d, ]*)\]")


def is_product(kind: str) -> bool:
    """Whether an operator of this type is a plain matrix product."""
    return PRODUCTS.fullmatch(kind) is not None


def flops_of_inputs(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    """2 m k n for each of the batch's products, of the two inputs alone, either of them transposed or not; None: not a pair.

    Of [m, k] and [k, n] the inner axis is one that both have. Where several could be it: of x [tokens, h] and y [tokens, h] the
    longest, of x^T y, a weight's gradient, so that the least is counted; of a batch of q [seq, d] and k [seq, d] the last, of
    attention's scores q k^T.
    """
    if len(a) < 2 or len(a) != len(b) or a[:-2] != b[:-2]:
        return None
    common = {*a[-2:]} & {*b[-2:]}
    if not common or 0 in (*a, *b):
        return None
    inner = a[-1] if len(a) > 2 and a[-1] == b[-1] else max(common)
    return 2 * math.prod(a) * math.prod(b[-2:]) // inner


def flops_of_sizes(kind: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], plain: bool) -> float | None:
    """The same where the output's shape is known: m k, k n and m n of each of b products, so m k n = sqrt(product of the three).

    Args:
        plain: the last two axes are those of a matrix; else (Ascend's tiled formats) the last four, padded to tiles.
    """
    if len(inputs) < 2 or not output:
        return None
    axes = 2 if plain else 4
    batch = math.prod(output[:-axes]) if kind.lower().startswith("batch") else 1
    sizes = [math.prod(shape) for shape in (inputs[0], inputs[1], output)]
    return 2.0 * math.sqrt(math.prod(sizes) / batch) if batch and all(sizes) else None


def shapes_of_cpu(text: str) -> list[tuple[int, ...]]:
    """`input_1:[1024, 128];input_2:[128, 128];input_3:NoShape;` -> [(1024, 128), (128, 128)]."""
    return [tuple(int(n) for n in found.replace(" ", "").split(",") if n) for found in SHAPE.findall(text)]


def shapes_of_ascend(text: str) -> list[tuple[int, ...]]:
    """`"1024,128;128,128"` -> [(1024, 128), (128, 128)]; [] where there are none (N/A)."""
    parts = [part for part in text.strip('"').split(";") if part]
    if not all(re.fullmatch(r"\d+(,\d+)*", part) for part in parts):
        return []
    return [tuple(map(int, part.split(","))) for part in parts]
