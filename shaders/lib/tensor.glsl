// Where a tensor's words are: by device address or by descriptor. The only file that knows which.
//
// A slice is one (batch, head) of a tensor, at most 4 GiB: 64-bit arithmetic finds its first word once, 32-bit indices
// do the rest. A tensor is aligned to its element only, so a slice of 16-bit or smaller elements may begin inside a word;
// `skew` is the number of elements of that word that come before it.
#ifndef TENSOR_GLSL
#define TENSOR_GLSL

#extension GL_EXT_control_flow_attributes : require
#if VKA_ADDRESS
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#endif
#extension GL_EXT_spirv_intrinsics : require

// SignedZeroInfNanPreserve for f32. The host removes it from the module where the device lacks it, and no kernel
// relies on it.
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4466], 4461, 32);

#define VKATTN_GLSL 1
#include "shared/params.h"

layout(push_constant) uniform Push { vka_push push; };

#if VKA_ADDRESS

layout(buffer_reference, std430, buffer_reference_align = 8) readonly restrict buffer ParamsRef { vka_params params; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly restrict buffer WordsRef { uint words[]; };
// Several words at once, aligned to one: half the time that drivers need to compile loops over long rows.
layout(buffer_reference, std430, buffer_reference_align = 4) readonly restrict buffer PairsRef { uvec2 pairs[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly restrict buffer QuadsRef { uvec4 quads[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) restrict buffer OutRef { uint words[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) restrict buffer OutQuadsRef { uvec4 quads[]; };

#define PARAMS ParamsRef(push.params).params
#define LOAD_WORD(NAME, slice, i) WordsRef((slice).first).words[i]
#define LOAD_PAIR(NAME, slice, i) PairsRef((slice).first).pairs[i]
#define LOAD_QUAD(NAME, slice, i) QuadsRef((slice).first).quads[i]
#define STORE_WORD(NAME, slice, i, value) OutRef((slice).first).words[i] = (value)
#define LOAD_OUTPUT_WORD(NAME, slice, i) OutRef((slice).first).words[i]
#define LOAD_OUTPUT_QUAD(NAME, slice, i) OutQuadsRef((slice).first).quads[i]
#define STORE_QUAD(NAME, slice, i, value) OutQuadsRef((slice).first).quads[i] = (value)
#define ATOMIC_AND(NAME, slice, i, value) atomicAnd(OutRef((slice).first).words[i], value)
#define ATOMIC_OR(NAME, slice, i, value) atomicOr(OutRef((slice).first).words[i], value)
#define INPUT(NAME, id)
#define OUTPUT(NAME, id)

#else

layout(set = 0, binding = 0, std430) readonly buffer ParamsBuffer { vka_params params_block; };

#define PARAMS params_block
#define LOAD_WORD(NAME, slice, i) NAME##_words[(slice).first.x + (i)]
#define LOAD_PAIR(NAME, slice, i) uvec2(LOAD_WORD(NAME, slice, 2 * (i)), LOAD_WORD(NAME, slice, 2 * (i) + 1))
#define LOAD_QUAD(NAME, slice, i) \
    uvec4(LOAD_WORD(NAME, slice, 4 * (i)), LOAD_WORD(NAME, slice, 4 * (i) + 1), LOAD_WORD(NAME, slice, 4 * (i) + 2), \
          LOAD_WORD(NAME, slice, 4 * (i) + 3))
#define STORE_WORD(NAME, slice, i, value) NAME##_words[(slice).first.x + (i)] = (value)
#define LOAD_OUTPUT_WORD(NAME, slice, i) LOAD_WORD(NAME, slice, i)
#define LOAD_OUTPUT_QUAD(NAME, slice, i) LOAD_QUAD(NAME, slice, i)
#define STORE_QUAD(NAME, slice, i, value) \
    { \
        const uvec4 quad = value; \
        STORE_WORD(NAME, slice, 4 * (i), quad.x); \
        STORE_WORD(NAME, slice, 4 * (i) + 1, quad.y); \
        STORE_WORD(NAME, slice, 4 * (i) + 2, quad.z); \
        STORE_WORD(NAME, slice, 4 * (i) + 3, quad.w); \
    }
#define ATOMIC_AND(NAME, slice, i, value) atomicAnd(NAME##_words[(slice).first.x + (i)], value)
#define ATOMIC_OR(NAME, slice, i, value) atomicOr(NAME##_words[(slice).first.x + (i)], value)
#define INPUT(NAME, id) layout(set = 0, binding = id + 1, std430) readonly restrict buffer NAME##Buffer { uint NAME##_words[]; };
#define OUTPUT(NAME, id) layout(set = 0, binding = id + 1, std430) restrict buffer NAME##Buffer { uint NAME##_words[]; };

#endif

struct Slice {
    uvec2 first; // address of the first word, or in x its index in the binding
    uint skew;   // elements of that word before the slice
};

uvec2 add64(uvec2 a, uvec2 b)
{
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

uvec2 multiply64(uvec2 a, uint b)
{
    uint high, low;
    umulExtended(a.x, b, high, low);
    return uvec2(low, high + a.y * b);
}

// log2 of the bits of an element, by storage type.
uint type_log2(uint type)
{
    return type == VKA_TYPE_F32 ? 5 : 4;
}

Slice tensor_slice(uint tensor, uint b, uint h, uint log2_bits)
{
    uvec2 address = PARAMS.tensors[tensor].address;
    uvec2 elements = add64(multiply64(PARAMS.tensors[tensor].batch_stride, b),
                           multiply64(PARAMS.tensors[tensor].head_stride, h));
    // Elements to bytes; bits of a bit mask leave a rest.
    uvec2 bytes;
    uint rest = 0;
    if (log2_bits >= 3) {
        uint shift = log2_bits - 3;
        bytes = uvec2(elements.x << shift, shift == 0 ? elements.y : (elements.y << shift) | (elements.x >> (32 - shift)));
    } else {
        bytes = uvec2((elements.x >> 3) | (elements.y << 29), elements.y >> 3);
        rest = elements.x & 7;
    }
    address = add64(address, bytes);
    uint skew = ((address.x & 3) * 8 + rest) >> log2_bits;
#if VKA_ADDRESS
    return Slice(uvec2(address.x & ~3u, address.y), skew);
#else
    // A binding's range is below 4 GiB.
    return Slice(uvec2(address.x >> 2, 0), skew);
#endif
}

// Element e of a slice lies in word element_word, at bit element_bit.
uint element_word(Slice slice, uint e, uint log2_bits)
{
    return (e + slice.skew) >> (5 - log2_bits);
}

uint element_bit(Slice slice, uint e, uint log2_bits)
{
    return ((e + slice.skew) << log2_bits) & 31;
}

// The slice that begins `e` elements later: one address, from which constant offsets go.
Slice slice_at(Slice slice, uint e, uint log2_bits)
{
    e += slice.skew;
#if VKA_ADDRESS
    slice.first = add64(slice.first, uvec2((e >> (5 - log2_bits)) << 2, 0));
#else
    slice.first.x += e >> (5 - log2_bits);
#endif
    slice.skew = e & ((1u << (5 - log2_bits)) - 1);
    return slice;
}

#define LOAD_BITS(NAME, slice, e, log2_bits) \
    bitfieldExtract(LOAD_WORD(NAME, slice, element_word(slice, e, log2_bits)), int(element_bit(slice, e, log2_bits)), \
                    1 << (log2_bits))

#endif
