"""SIMD vectors for numba: sixteen lanes at a time, in the instructions of the CPU at hand.

numba compiles loops over numbers; products of packed weights need vectors. Here are the few vector types and operations
that the kernels of this package use, as numba intrinsics: each emits LLVM IR of sixteen lanes, which LLVM splits into
registers as wide as the CPU has (two of 256 bits on AVX2, one of 512 bits on AVX-512, four of 128 bits elsewhere). Only
dot products name instructions: of bytes `vpdpbusd` where the CPU has it, `vpmaddubsw` on AVX2; of bfloat16 `vdpbf16ps`.

Addresses are byte addresses as int64 (`array.ctypes.data`); nothing is checked. Loads and stores may be unaligned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16

_HALF, _FLOAT = ir.HalfType(), ir.FloatType()
_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)


class Vector(types.Type):
    """A vector as numba sees it: an element type and a number of lanes."""

    def __init__(self, name: str, element: ir.Type, lanes: int) -> None:
        super().__init__(name)
        self.llvm_type = ir.VectorType(element, lanes)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.llvm_type)


FEATURES = dict(llvm.get_host_cpu_features())
HAS_AVX512 = FEATURES.get("avx512f", False)
HAS_VNNI_512 = HAS_AVX512 and FEATURES.get("avx512vnni", False)
HAS_AVX2 = FEATURES.get("avx2", False)
HAS_BF16_512 = HAS_AVX512 and FEATURES.get("avx512bf16", False)

f32x16 = Vector("f32x16", _FLOAT, 16)
i32x16 = Vector("i32x16", _I32, 16)
u8x64 = Vector("u8x64", _I8, 64)
# What an 8-bit dot product accumulates in: AVX2 multiplies into 16 bits.
i16x32 = Vector("i16x32", _I16, 32)
dot_type = i16x32 if HAS_AVX2 and not HAS_VNNI_512 else i32x16

_Emit = Callable[[Any, Any, list[Any]], Any]


def _define(name: str, result: types.Type, arguments: tuple[types.Type, ...], emit: _Emit) -> Any:
    """An intrinsic of that name and signature; `emit(context, builder, arguments)` returns its LLVM value."""

    def codegen(context: Any, builder: Any, signature: Any, values: list[Any]) -> Any:
        value = emit(context, builder, values)
        return context.get_dummy_value() if value is None else value

    # numba reads an intrinsic's arity off its Python signature.
    typers: tuple[Callable[..., Any], ...] = (
        lambda typing_context: (result(), codegen),
        lambda typing_context, a: (result(*arguments), codegen),
        lambda typing_context, a, b: (result(*arguments), codegen),
        lambda typing_context, a, b, c: (result(*arguments), codegen),
    )
    typer = typers[len(arguments)]
    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)


def _pointer(builder: Any, address: Any, type_: ir.Type) -> Any:
    return builder.inttoptr(address, type_.as_pointer())


def _load(type_: ir.Type, align: int) -> _Emit:
    def emit(context: Any, builder: Any, values: list[Any]) -> Any:
        return builder.load(_pointer(builder, values[0], type_), align=align)

    return emit


def _store(type_: ir.Type, align: int) -> _Emit:
    def emit(context: Any, builder: Any, values: list[Any]) -> Any:
        builder.store(values[1], _pointer(builder, values[0], type_), align=align)

    return emit


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    type_ = ir.VectorType(value.type, lanes)
    single = builder.insert_element(ir.Constant(type_, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(single, ir.Constant(type_, ir.Undefined), zeros)


def _call(builder: Any, name: str, result: ir.Type, values: list[Any]) -> Any:
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(result, [value.type for value in values]), name
    )
    return builder.call(function, values)


_F, _I, _B = f32x16.llvm_type, i32x16.llvm_type, u8x64.llvm_type
_H = ir.VectorType(_HALF, 16)

# Scalars in memory.
load_f32 = _define("load_f32", types.float32, (types.int64,), _load(_FLOAT, 4))
store_f32 = _define("store_f32", types.void, (types.int64, types.float32), _store(_FLOAT, 4))
load_i64 = _define("load_i64", types.int64, (types.int64,), _load(_I64, 8))
store_i64 = _define("store_i64", types.void, (types.int64, types.int64), _store(_I64, 8))
load_i8 = _define(
    "load_i8", types.int64, (types.int64,), lambda c, b, v: b.sext(b.load(_pointer(b, v[0], _I8), align=1), _I64)
)

# Vectors in memory; halves are widened when loaded and rounded when stored.
load_f32x16 = _define("load_f32x16", f32x16, (types.int64,), _load(_F, 4))
store_f32x16 = _define("store_f32x16", types.void, (types.int64, f32x16), _store(_F, 4))
load_u8x64 = _define("load_u8x64", u8x64, (types.int64,), _load(_B, 1))
load_f16x16 = _define(
    "load_f16x16", f32x16, (types.int64,), lambda c, b, v: b.fpext(b.load(_pointer(b, v[0], _H), align=2), _F)
)
load_f16 = _define(
    "load_f16",
    types.float32,
    (types.int64,),
    lambda c, b, v: b.fpext(b.load(_pointer(b, v[0], _HALF), align=2), _FLOAT),
)


def _store_i8x16(context: Any, builder: Any, values: list[Any]) -> None:
    narrow = ir.VectorType(_I8, 16)
    builder.store(builder.trunc(values[1], narrow), _pointer(builder, values[0], narrow), align=1)


store_i8x16 = _define("store_i8x16", types.void, (types.int64, i32x16), _store_i8x16)

# Arithmetic.
splat_f32 = _define("splat_f32", f32x16, (types.float32,), lambda c, b, v: _splat(b, v[0], 16))
fma = _define("fma", f32x16, (f32x16, f32x16, f32x16), lambda c, b, v: _call(b, "llvm.fma.v16f32", _F, v))
maximum = _define(
    "maximum", f32x16, (f32x16, f32x16), lambda c, b, v: b.select(b.fcmp_ordered(">", v[0], v[1]), v[0], v[1])
)
minimum = _define(
    "minimum", f32x16, (f32x16, f32x16), lambda c, b, v: b.select(b.fcmp_ordered("<", v[0], v[1]), v[0], v[1])
)
where_above = _define(
    "where_above",
    f32x16,
    (f32x16, f32x16, f32x16),
    lambda c, b, v: b.select(b.fcmp_ordered(">", v[0], v[1]), v[2], ir.Constant(_F, None)),
)
absolute = _define("absolute", f32x16, (f32x16,), lambda c, b, v: _call(b, "llvm.fabs.v16f32", _F, v))
round_even = _define("round_even", f32x16, (f32x16,), lambda c, b, v: _call(b, "llvm.nearbyint.v16f32", _F, v))
to_int = _define("to_int", i32x16, (f32x16,), lambda c, b, v: b.fptosi(v[0], _I))
to_float = _define("to_float", f32x16, (i32x16,), lambda c, b, v: b.sitofp(v[0], _F))
add_int = _define("add_int", i32x16, (i32x16, i32x16), lambda c, b, v: b.add(v[0], v[1]))


def _power_of_two(context: Any, builder: Any, values: list[Any]) -> Any:
    biased = builder.add(values[0], ir.Constant(_I, [127] * 16))
    return builder.bitcast(builder.shl(biased, ir.Constant(_I, [23] * 16)), _F)


power_of_two = _define("power_of_two", f32x16, (i32x16,), _power_of_two)


def _reduce(name: str) -> _Emit:
    """Fold sixteen lanes in a fixed tree, so that the result does not depend on the width of the registers."""

    def emit(context: Any, builder: Any, values: list[Any]) -> Any:
        value, width = values[0], 16
        while width > 1:
            width //= 2
            undefined = ir.Constant(value.type, ir.Undefined)
            low = builder.shuffle_vector(value, undefined, ir.Constant(ir.VectorType(_I32, width), list(range(width))))
            high = builder.shuffle_vector(
                value, undefined, ir.Constant(ir.VectorType(_I32, width), list(range(width, 2 * width)))
            )
            if name == "max":
                value = builder.select(builder.fcmp_ordered(">", low, high), low, high)
            else:
                value = builder.fadd(low, high) if name == "sum" else builder.add(low, high)
        return builder.extract_element(value, ir.Constant(_I32, 0))

    return emit


sum_lanes = _define("sum_lanes", types.float32, (f32x16,), _reduce("sum"))
max_lanes = _define("max_lanes", types.float32, (f32x16,), _reduce("max"))
sum_lanes_int = _define("sum_lanes_int", types.int32, (i32x16,), _reduce("sum_int"))

add = _define("add", f32x16, (f32x16, f32x16), lambda c, b, v: b.fadd(v[0], v[1]))
subtract = _define("subtract", f32x16, (f32x16, f32x16), lambda c, b, v: b.fsub(v[0], v[1]))
multiply = _define("multiply", f32x16, (f32x16, f32x16), lambda c, b, v: b.fmul(v[0], v[1]))
divide = _define("divide", f32x16, (f32x16, f32x16), lambda c, b, v: b.fdiv(v[0], v[1]))

# Nibbles and bytes.
low_nibbles = _define("low_nibbles", u8x64, (u8x64,), lambda c, b, v: b.and_(v[0], ir.Constant(_B, [15] * 64)))
high_nibbles = _define("high_nibbles", u8x64, (u8x64,), lambda c, b, v: b.lshr(v[0], ir.Constant(_B, [4] * 64)))


def _broadcast_quad(context: Any, builder: Any, values: list[Any]) -> Any:
    quad = builder.load(_pointer(builder, values[0], _I32), align=1)
    return builder.bitcast(_splat(builder, quad, 16), _B)


# Four bytes in memory, repeated over all sixteen lanes.
broadcast_quad = _define("broadcast_quad", u8x64, (types.int64,), _broadcast_quad)


def _part(builder: Any, value: Any, start: int, width: int) -> Any:
    indices = ir.Constant(ir.VectorType(_I32, width), list(range(start, start + width)))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), indices)


def _joined(builder: Any, low: Any, high: Any) -> Any:
    width = low.type.count
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(_I32, 2 * width), list(range(2 * width))))


def _maddubs(builder: Any, unsigned: Any, signed: Any) -> Any:
    """AVX2: products of bytes, neighbours added, saturated to 16 bits (callers keep them below)."""
    narrow = ir.VectorType(_I16, 16)
    halves = [
        _call(
            builder,
            "llvm.x86.avx2.pmadd.ub.sw",
            narrow,
            [_part(builder, unsigned, start, 32), _part(builder, signed, start, 32)],
        )
        for start in (0, 32)
    ]
    return _joined(builder, *halves)


def _madd_ones(builder: Any, value: Any) -> Any:
    """AVX2: neighbouring 16-bit lanes added into 32 bits."""
    ones = ir.Constant(ir.VectorType(_I16, 16), [1] * 16)
    halves = [
        _call(builder, "llvm.x86.avx2.pmadd.wd", ir.VectorType(_I32, 8), [_part(builder, value, start, 16), ones])
        for start in (0, 16)
    ]
    return _joined(builder, *halves)


def _vpdpbusd(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    return _call(builder, "llvm.x86.avx512.vpdpbusd.512", _I, [total, unsigned, signed])


def _plain_dot(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    wide = ir.VectorType(_I32, 64)
    products = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    for offset in range(4):
        lanes = ir.Constant(ir.VectorType(_I32, 16), list(range(offset, 64, 4)))
        total = builder.add(total, builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), lanes))
    return total


def _dot_nibbles(context: Any, builder: Any, values: list[Any]) -> Any:
    total, unsigned, signed = values
    if HAS_VNNI_512:
        return _vpdpbusd(builder, total, unsigned, signed)
    if HAS_AVX2:
        return builder.add(total, _maddubs(builder, unsigned, signed))
    return _plain_dot(builder, total, unsigned, signed)


def _dot_total(context: Any, builder: Any, values: list[Any]) -> Any:
    return _madd_ones(builder, values[0]) if dot_type is i16x32 else values[0]


# total[lane] + Σ unsigned[4·lane + i] · signed[4·lane + i], i < 4. On AVX2 totals are of 16 bits: with weights of at
# most 15 and activations of at most 127, eight of them add up without overflow, which is one group of 32.
dot_zero = _define("dot_zero", dot_type, (), lambda c, b, v: ir.Constant(dot_type.llvm_type, None))
dot_nibbles = _define("dot_nibbles", dot_type, (dot_type, u8x64, u8x64), _dot_nibbles)
dot_total = _define("dot_total", i32x16, (dot_type,), _dot_total)


def _dot_bytes(context: Any, builder: Any, values: list[Any]) -> Any:
    """total[lane] + Σ weight · activation over four signed bytes."""
    total, weight, activation = values
    if HAS_AVX2:
        zero = ir.Constant(_B, [0] * 64)
        negative = builder.icmp_signed("<", weight, zero)
        magnitude = builder.select(negative, builder.sub(zero, weight), weight)
        signed = builder.select(negative, builder.sub(zero, activation), activation)
        if HAS_VNNI_512:
            return _vpdpbusd(builder, total, magnitude, signed)
        return builder.add(total, _madd_ones(builder, _maddubs(builder, magnitude, signed)))
    wide = ir.VectorType(_I32, 64)
    products = builder.mul(builder.sext(weight, wide), builder.sext(activation, wide))
    for offset in range(4):
        lanes = ir.Constant(ir.VectorType(_I32, 16), list(range(offset, 64, 4)))
        total = builder.add(total, builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), lanes))
    return total


dot_bytes = _define("dot_bytes", i32x16, (i32x16, u8x64, u8x64), _dot_bytes)
zero_i32 = _define("zero_i32", i32x16, (), lambda c, b, v: ir.Constant(_I, None))


# Keys and values. Where the CPU multiplies pairs of bfloat16, a lane of a vector holds two neighbours and is multiplied
# with two weights (of queries, of the softmax) at once; elsewhere a lane is a float16 and its weight a float32. Either
# way the weights of a lane take four bytes.
KV_PACK = 2 if HAS_BF16_512 else 1
WEIGHT_BYTES = 4 // KV_PACK
_LARGEST = 3.0e38 if HAS_BF16_512 else 65504.0


def _narrow(builder: Any, value: Any) -> Any:
    """bfloat16 of sixteen float32, as integers of 16 bits: this IR builder lacks the type, LLVM takes either."""
    return _call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", ir.VectorType(_I16, 16), [value])


def _dot_kv(context: Any, builder: Any, values: list[Any]) -> Any:
    total, vector, address = values
    if not HAS_BF16_512:
        weight = _splat(builder, builder.load(_pointer(builder, address, _FLOAT), align=4), 16)
        return _call(builder, "llvm.fma.v16f32", _F, [weight, vector, total])
    weights = _splat(builder, builder.load(_pointer(builder, address, _I32), align=4), 16)
    return _call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", _F, [total, vector, weights])


def _store_weights(context: Any, builder: Any, values: list[Any]) -> None:
    address, value = values
    if HAS_BF16_512:
        value = _narrow(builder, value)
    builder.store(value, _pointer(builder, address, value.type), align=WEIGHT_BYTES)


kv_type = i32x16 if HAS_BF16_512 else f32x16
load_kv = _define("load_kv", i32x16, (types.int64,), _load(_I, 4)) if HAS_BF16_512 else load_f16x16
dot_kv = _define("dot_kv", f32x16, (f32x16, kv_type, types.int64), _dot_kv)
store_weights = _define("store_weights", types.void, (types.int64, f32x16), _store_weights)


def _store_kv(context: Any, builder: Any, values: list[Any]) -> None:
    address, value = values
    # Finite, since a weight of 0 may meet what a former owner of a slot has left there.
    for bound, keep in ((_LARGEST, "<"), (-_LARGEST, ">")):
        limit = ir.Constant(_F, [bound] * 16)
        value = builder.select(builder.fcmp_ordered(keep, value, limit), value, limit)
    narrow = _narrow(builder, value) if HAS_BF16_512 else builder.fptrunc(value, _H)
    builder.store(narrow, _pointer(builder, address, narrow.type), align=2)


def _copy_i16(context: Any, builder: Any, values: list[Any]) -> None:
    source, target = (_pointer(builder, address, _I16) for address in values)
    builder.store(builder.load(source, align=2), target, align=2)


# Sixteen numbers as keys and values are kept, side by side.
store_kv = _define("store_kv", types.void, (types.int64, f32x16), _store_kv)
copy_i16 = _define("copy_i16", types.void, (types.int64, types.int64), _copy_i16)


def _prefetch(context: Any, builder: Any, values: list[Any]) -> None:
    address = builder.inttoptr(values[0], _I8.as_pointer())
    read, keep, data = (ir.Constant(_I32, number) for number in (0, 3, 1))
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), [address, read, keep, data])


# Ask for the cache line at an address, which need not be a valid one.
prefetch = _define("prefetch", types.void, (types.int64,), _prefetch)


# Threads. Everything that threads hand to each other goes through these.
def _atomic_add(context: Any, builder: Any, values: list[Any]) -> Any:
    return builder.atomic_rmw("add", _pointer(builder, values[0], _I64), values[1], "seq_cst")


atomic_add = _define("atomic_add", types.int64, (types.int64, types.int64), _atomic_add)
atomic_load = _define(
    "atomic_load",
    types.int64,
    (types.int64,),
    lambda c, b, v: b.load_atomic(_pointer(b, v[0], _I64), ordering="acquire", align=8),
)
atomic_store = _define(
    "atomic_store",
    types.void,
    (types.int64, types.int64),
    lambda c, b, v: b.store_atomic(v[1], _pointer(b, v[0], _I64), ordering="release", align=8) and None,
)


def _pause(context: Any, builder: Any, values: list[Any]) -> None:
    if llvm.get_process_triple().startswith("x86_64"):
        _call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])


cpu_pause = _define("cpu_pause", types.void, (), _pause)
