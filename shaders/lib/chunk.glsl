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
            const bool odd = row.skew != 0; \
            a = mix(w0, (w0 >> 16) | (w1 << 16), odd); \
            b = mix(w1, (w1 >> 16) | (w2 << 16), odd); \
        } \
        if (!whole) { \
            /* The rest of a word may be a neighbour's, NaN included. */ \
            a = mix(a, a & 0xFFFFu, left < 2); \
            b = mix(mix(b, b & 0xFFFFu, left < 4), 0u, left < 3); \
        } \
        return decode_words(TYPE, a, b); \
    }

// Defines void NAME(row, c, n, whole, x), which stores chunk c of the n elements that begin at `row`; `whole`, a constant, says
// that 4c + 4 <= n is known. And void NAME_edges(row, n)
// for after the last chunk; chunks come in order. Words that lie inside the row are stored whole. Of a 16-bit type the
// row's first and last element may share their word with a neighbour: edges stores those halves alone.
#define DEFINE_CHUNK_STORE(NAME, TENSOR, TYPE) \
    uint NAME##_carry, NAME##_first, NAME##_last; /* encoded: the element before the chunk, the row's first and last */ \
    void NAME(Slice row, uint c, uint n, bool whole, vec4 x) \
    { \
        if (TYPE == VKA_TYPE_F32) { \
            if (whole || 4 * c + 4 <= n) { \
                STORE_QUAD(TENSOR, row, c, floatBitsToUint(x)); \
            } else { \
                if (4 * c < n) \
                    STORE_WORD(TENSOR, row, 4 * c, floatBitsToUint(x.x)); \
                if (4 * c + 1 < n) \
                    STORE_WORD(TENSOR, row, 4 * c + 1, floatBitsToUint(x.y)); \
                if (4 * c + 2 < n) \
                    STORE_WORD(TENSOR, row, 4 * c + 2, floatBitsToUint(x.z)); \
            } \
        } else { \
            const uvec4 e = uvec4(encode(TYPE, x.x), encode(TYPE, x.y), encode(TYPE, x.z), encode(TYPE, x.w)); \
            const bool odd = row.skew != 0, even_0 = 4 * c + 1 < n, odd_0 = c > 0 && 4 * c < n; \
            const bool even_1 = 4 * c + 3 < n, odd_1 = 4 * c + 2 < n; \
            if (mix(even_0, odd_0, odd)) \
                STORE_WORD(TENSOR, row, 2 * c, mix(e.x | e.y << 16, NAME##_carry | e.x << 16, odd)); \
            if (mix(even_1, odd_1, odd)) \
                STORE_WORD(TENSOR, row, 2 * c + 1, mix(e.z | e.w << 16, e.y | e.z << 16, odd)); \
            NAME##_first = mix(NAME##_first, e.x, c == 0); \
            NAME##_last = mix(NAME##_last, e.x, 4 * c + 1 == n); \
            NAME##_last = mix(NAME##_last, e.y, 4 * c + 2 == n); \
            NAME##_last = mix(NAME##_last, e.z, 4 * c + 3 == n); \
            NAME##_last = mix(NAME##_last, e.w, 4 * c + 4 == n); \
            NAME##_carry = e.w; \
        } \
    } \
    void NAME##_edges(Slice row, uint n) \
    { \
        if (TYPE != VKA_TYPE_F32) { \
            if (row.skew != 0 && n > 0) \
                STORE_HALF(TENSOR, row, 0, NAME##_first) \
            if (((n + row.skew) & 1) != 0 && n > 0) \
                STORE_HALF(TENSOR, row, n - 1, NAME##_last) \
        } \
    }

#endif
