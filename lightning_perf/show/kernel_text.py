"""The names of kernels as tables show them, without the parts that rarely distinguish kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

_COMMON = re.compile(r"\bat::native::|\(anonymous namespace\)::|, (?:at::detail::A|std::a)rray<char\*, \d+(?:ul)?>")

_TEMPLATES = {
    "vectorized_elementwise_kernel": "vectorized",
    "unrolled_elementwise_kernel": "unrolled",
    "elementwise_kernel": "elementwise",
    "reduce_kernel": "reduce",
    "multi_tensor_apply_kernel": "multi_tensor",
}
"""PyTorch's templates, which compute any function of elements. It is in their arguments, far from both ends."""

_PARAMETER = re.compile(r"[\d\s]|unsigned int$|\w*TensorList|\(")
"""The start of an argument that is no function."""

_LAMBDA = re.compile(r"\{lambda\(([^(){}]+)\)")
_AFFIXES = re.compile(r"^CUDAFunctor_?|(?:_kernel)?(?:_impl|_cuda)?$|_?[Ff]unctor(?:_t)?$")
_WRAPPERS = ("gpu_kernel_impl", "func_wrapper_t", "ReduceOp")
_DEPTH = {"<": 1, "(": 1, "{": 1, ">": -1, ")": -1, "}": -1}
_MOST_LEVELS = 4

_TILE = re.compile(r"[\dx]*")
_CUB = re.compile(r"^(?:\w+::)?cub::(?:\w+::)*(\w+)<.*$")


def kernel_text(name: str) -> str:
    """Shorten a kernel's name by parts that rarely distinguish kernels: return type, namespaces of torch, arguments.

    Of PyTorch's templates, the function of elements and its type remain, and of cuDNN's and cuBLAS's kernels the tile.

    Example:
        >>> kernel_text("void at::native::softmax<512, at::native::Sum<float> >(at::native::Sum<float>)")
        'softmax<512, Sum<float> >'
        >>> kernel_text("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)")
        'vectorized add float'
        >>> kernel_text("Memcpy HtoD (Pageable -> Device)")
        'Memcpy HtoD (Pageable -> Device)'
    """
    short = _COMMON.sub("", name.removeprefix("void "))
    if short.startswith(("Memcpy", "Memset")) or not short.endswith(")"):
        return _xmma_text(short)
    depth = 0
    for place in range(len(short) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(short[place], 0)
        if depth == 0:
            short = short[:place].rstrip()
            break
    return _template_text(short) or _CUB.sub(r"cub::\1", short)


def _xmma_text(name: str) -> str:
    """Return the name of a kernel of cuDNN or cuBLAS up to its tile: the names of many end alike."""
    head, mark, rest = name.partition("_tilesize")
    tile = _TILE.match(rest)
    if "_xmma_" not in head or not tile:
        return name
    return f"{head}{mark}{tile.group()}{'_split_k' if 'split_k' in rest else ''}"


def _template_text(short: str) -> str:
    """Return the function and its type of one of PyTorch's templates; empty for another kernel."""
    template, _, inside = short.partition("<")
    if template not in _TEMPLATES or not short.endswith(">"):
        return ""
    functions = [part for part in _arguments(inside[:-1]) if not _PARAMETER.match(part)]
    words, of_type = [], ""
    for function in functions[:1] + [part for part in functions[1:2] if template.startswith("multi") and "<" in part]:
        named, found = _function(function)
        words += named
        of_type = of_type or found
    kind = "casting" if "LoadWithCast" in inside else _TEMPLATES[template]
    return " ".join(filter(None, (kind, *words, of_type))) if words else ""


def _arguments(text: str) -> Iterator[str]:
    """Yield the arguments of a template that stand on its own level."""
    depth = start = 0
    for place, letter in enumerate(text):
        depth += _DEPTH.get(letter, 0)
        if letter == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()


def _function(text: str, level: int = 0) -> tuple[list[str], str]:
    """Return the words of a function of elements, and the type of the elements."""
    head = text.split("<", 1)[0].split("(", 1)[0]
    inner = list(_arguments(_of_template(text)))
    if level < _MOST_LEVELS and head.startswith(_WRAPPERS):
        functions = [part for part in inner if "<" in part or "(" in part]
        words, of_type = _function(functions[0], level + 1) if functions else ([], "")
        return words, _type(inner[0]) if inner and "<" not in inner[0] and "(" not in inner[0] else of_type
    words = [_AFFIXES.sub("", _AFFIXES.sub("", head.rpartition("::")[2]))]
    if lambdas := _LAMBDA.findall(text):
        return (words + _function(inner[-1], level + 1)[0] if _is_nested(inner, level) else words), _type(lambdas[-1])
    if _is_nested(inner, level):
        words += _function(inner[-1], level + 1)[0]
    return words, _type(inner[0]) if inner else ""


def _is_nested(inner: list[str], level: int) -> bool:
    """Return whether the last argument of a template is a function as well."""
    return level < _MOST_LEVELS and len(inner) > 1 and "<" in inner[-1]


def _of_template(text: str) -> str:
    """Return the text between the first bracket of a template and the bracket that closes it."""
    start = text.find("<")
    if start < 0 or "(" in text[:start]:
        return ""
    depth = 0
    for place in range(start, len(text)):
        depth += {"<": 1, ">": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place]
    return ""


def _type(text: str) -> str:
    """Return the first of some types, without its namespace."""
    return text.split(",", 1)[0].strip().rpartition("::")[2]
