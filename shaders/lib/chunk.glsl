// Rows as chunks of four elements, for kernels that keep rows in registers. A chunk is a vec4 whatever the type; a row of n
// elements has (n + 3) / 4 of them, the last one filled up with zeros. No word is read that holds no element of the row.
#ifndef CHUNK_GLSL
#define CHUNK_GLSL

#include "lib/dtype.glsl"

// Two words of a 16-bit type. unpackHalf2x16 is what drivers fold into the multiply-add; a driver that flushes half
// subnormals in it would fail `vkattn check`.
vec4 decode_words(uint type, uint a, uint b)
{
    if (type == VKA_TYPE_F16)
        return vec4(unpackHalf2x16(a), unpackHalf2x16(b));
    return vec4(uintBitsToFloat(a << 16), uintBitsToFloat(a & 0xFFFF0000u), uintBitsToFloat(b << 16),
                uintBitsToFloat(b & 0xFFFF0000u));
}

// Defines vec4 NAME(row, c, n, whole, more): chunk c of the n elements that begin at `row`. `whole` and `more`, constants,
// say that 4c + 4 <= n and 4c + 5 <= n are known; WORDS, a constant, that rows start on words.
#define DEFINE_CHUNK(NAME, TENSOR, TYPE, WORDS) \
    vec4 NAME(Slice row, uint c, uint n, bool whole, bool more) \
    { \
        const uint left = n > 4 * c ? n - 4 * c : 0; \
        if (TYPE == VKA_TYPE_F32) { \
            if (whole) \
                return uintBitsToFloat(LOAD_QUAD(TENSOR, row, c)); \
            uvec4 x = uvec4(0); \
            if (left > 0) \
                x.x = LOAD_WORD(TENSOR, row, 4 * c); \
            if (left > 1) \
                x.y = LOAD_WORD(TENSOR, row, 4 * c + 1); \
            if (left > 2) \
                x.z = LOAD_WORD(TENSOR, row, 4 * c + 2); \
            if (left > 3) \
                x.w = LOAD_WORD(TENSOR, row, 4 * c + 3); \
            return uintBitsToFloat(x); \
        } \
        uint a = 0, b = 0; \
        if (WORDS && whole) { \
            const uvec2 pair = LOAD_PAIR(TENSOR, row, c); \
            a = pair.x; \
            b = pair.y; \
        } else if (WORDS) { \
            if (left > 0) \
                a = LOAD_WORD(TENSOR, row, 2 * c); \
            if (left > 2) \
                b = LOAD_WORD(TENSOR, row, 2 * c + 1); \
        } else if (whole || left > 0) { \
            /* Only the last chunk can reach past the last word: elsewhere offsets stay constant, and loads wide. */ \
            const uint end = (n - 1 + row.skew) >> 1; \
            const uint w0 = LOAD_WORD(TENSOR, row, 2 * c); \
            const uint w1 = LOAD_WORD(TENSOR, row, whole ? 2 * c + 1 : min(2 * c + 1, end)); \
            const uint w2 = LOAD_WORD(TENSOR, row, more ? 2 * c + 2 : min(2 * c + 2, end)); \
            a = row.skew != 0 ? (w0 >> 16) | (w1 << 16) : w0; \
            b = row.skew != 0 ? (w1 >> 16) | (w2 << 16) : w1; \
        } \
        if (!whole) { \
            /* The rest of a word may be a neighbour's, NaN included. */ \
            a = left < 2 ? a & 0xFFFFu : a; \
            b = left < 3 ? 0 : left < 4 ? b & 0xFFFFu : b; \
        } \
        return decode_words(TYPE, a, b); \
    }

// Defines void NAME(row, c, n, x): stores chunk c of the n elements that begin at `row`. A word of a 16-bit type that lies
// inside the row is stored whole by the chunk that holds its upper half; the row's first and last word may be shared with
// a neighbour, and then only the row's half changes. `carry` is the encoded last element of the chunk before.
#define DEFINE_CHUNK_STORE(NAME, TENSOR, TYPE) \
    uint NAME##_carry; \
    void NAME(Slice row, uint c, uint n, vec4 x) \
    { \
        if (TYPE == VKA_TYPE_F32) { \
            [[unroll]] for (uint k = 0; k < 4; k++) \
                if (4 * c + k < n) \
                    STORE_WORD(TENSOR, row, 4 * c + k, floatBitsToUint(x[k])); \
        } else { \
            [[unroll]] for (uint k = 0; k < 4; k++) { \
                const uint e = 4 * c + k, bits = encode(TYPE, x[k]); \
                const bool upper = ((e + row.skew) & 1) != 0; \
                if (e < n && upper && e > 0) \
                    STORE_WORD(TENSOR, row, (e + row.skew) >> 1, NAME##_carry | bits << 16); \
                else if (e < n && (upper || e + 1 == n)) \
                    STORE_HALF(TENSOR, row, e, bits); \
                NAME##_carry = bits; \
            } \
        } \
    }

#endif
