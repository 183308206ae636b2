// Storage types: bits of a word to a float and back. One case per type.
#ifndef DTYPE_GLSL
#define DTYPE_GLSL

#include "lib/numerics.glsl"
#include "lib/tensor.glsl"

// `bits` holds the element in its low bits.
float decode(uint type, uint bits)
{
    switch (type) {
    case VKA_TYPE_F16:
        return decode_f16(bits & 0xFFFFu);
    case VKA_TYPE_BF16:
        return uintBitsToFloat(bits << 16);
    default:
        return uintBitsToFloat(bits);
    }
}

uint encode(uint type, float value)
{
    switch (type) {
    case VKA_TYPE_F16:
        return encode_f16(value);
    case VKA_TYPE_BF16:
        return encode_bf16(value);
    default:
        return floatBitsToUint(value);
    }
}

#define LOAD_ELEMENT(NAME, slice, e, type) \
    decode(type, LOAD_WORD(NAME, slice, element_word(slice, e, type_log2(type))) >> element_bit(slice, e, type_log2(type)))

// Store the bits of a 16-bit element whose word another invocation may be writing too, or whose other half belongs to a
// neighbour of the tensor: only its own bits change.
#define STORE_HALF(NAME, slice, e, bits) \
    { \
        const uint half_word = element_word(slice, e, 4), half_bit = element_bit(slice, e, 4); \
        ATOMIC_AND(NAME, slice, half_word, ~(0xFFFFu << half_bit)); \
        ATOMIC_OR(NAME, slice, half_word, (bits) << half_bit); \
    }

#define STORE_ELEMENT(NAME, slice, e, type, value) \
    { \
        if (type == VKA_TYPE_F32) \
            STORE_WORD(NAME, slice, e, floatBitsToUint(value)); \
        else \
            STORE_HALF(NAME, slice, e, encode(type, value)) \
    }

#endif
