#version 450
// kv_unpack: K and V of a 16-bit type to f32 copies in the workspace, rows padded with zeros to four elements.
//
// For devices on which decoding in the inner loop costs more than a pass over K and V, and for rows that start in the
// middle of a word. Exact. One work group does KEYS keys of one (batch, kv head); invocations are elements of a row. Keys
// that no query sees are not read: before the first and behind the last one that is seen, nothing is written; copies of
// those between are zeros.
#extension GL_GOOGLE_include_directive : require
#include "lib/dtype.glsl"
#include "lib/item.glsl"
#include "lib/mask.glsl"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;
layout(constant_id = VKA_ID_WORKGROUP) const uint LANES = 64; // a multiple of 4
layout(constant_id = VKA_ID_KEYS) const uint KEYS = 16;
layout(constant_id = VKA_ID_UNIFORM) const uint UNIFORM = 0;

INPUT(K, VKA_K)
INPUT(V, VKA_V)
OUTPUT(K_COPY, VKA_K_COPY)
OUTPUT(V_COPY, VKA_V_COPY)

// Elements first .. first + LANES - 1 of a row of n, one in each lane; `first` is even. What is behind the row's end is
// anything: no word is read that holds no element of the row. With UNIFORM the lanes' words are picked from loads at
// addresses that are the same for all: on llvmpipe as many as there are words, where a gather costs 55 cycles.
#define DEFINE_ELEMENTS(NAME, TENSOR) \
    float NAME(Slice row, uint first, uint n) \
    { \
        const uint end = (n - 1 + row.skew) >> 1; \
        const uint at = gl_LocalInvocationIndex + row.skew; \
        uint word = 0; \
        if (UNIFORM != 0) { \
            [[unroll]] for (uint w = 0; w <= LANES / 2; w++) \
                word = mix(word, LOAD_WORD(TENSOR, row, min(first / 2 + w, end)), at >> 1 == w); \
        } else { \
            word = LOAD_WORD(TENSOR, row, min(first / 2 + (at >> 1), end)); \
        } \
        const uint bits = mix(word & 0xFFFFu, word >> 16, (at & 1) != 0); \
        return mix(uintBitsToFloat(bits << 16), unpackHalf2x16(bits).x, PARAMS.kv_type == VKA_TYPE_F16); \
    }

DEFINE_ELEMENTS(elements_of_k, K)
DEFINE_ELEMENTS(elements_of_v, V)

#define COPY_ROW(load, TENSOR, from, from_stride, to, to_stride, dim, key, used) \
    { \
        const Slice source = slice_at(from, uint(key) * from_stride, 4); \
        const Slice target = slice_at(to, uint(key) * to_stride, 5); \
        uint first = 0; \
        do { \
            const uint e = first + gl_LocalInvocationIndex; \
            float x = 0.0; \
            if (used) \
                x = load(source, first, dim); \
            if (e < ((dim + 3) & ~3u)) \
                STORE_WORD(TENSOR, target, e, e < dim ? floatBitsToUint(x) : 0); \
            first += LANES; \
        } while (first < dim); \
    }

void main()
{
    Item item;
    if (!work_item(PARAMS.heads / PARAMS.group, item))
        return;
    // Band, prefix and lengths are the same for all heads of a member.
    const Member m = member(item.b, item.h);
    const Span span = key_span(m, 0, m.len_q - 1);
    const Slice k = tensor_slice(VKA_K, item.b, item.h, 4), v = tensor_slice(VKA_V, item.b, item.h, 4);
    const Slice k_copy = tensor_slice(VKA_K_COPY, item.b, item.h, 5);
    const Slice v_copy = tensor_slice(VKA_V_COPY, item.b, item.h, 5);

    const int begin = max(int(item.block * KEYS), span.begin), end = min(int((item.block + 1) * KEYS), span.end);
    // Bottom-tested: llvmpipe runs the body of a top-tested loop once more, and does its uniform loads.
    if (begin < end) {
        int key = begin;
        do {
            const bool used = span_next(span, key) == key;
            COPY_ROW(elements_of_k, K_COPY, k, PARAMS.tensors[VKA_K].row_stride, k_copy,
                     PARAMS.tensors[VKA_K_COPY].row_stride, PARAMS.dim_qk, key, used)
            COPY_ROW(elements_of_v, V_COPY, v, PARAMS.tensors[VKA_V].row_stride, v_copy,
                     PARAMS.tensors[VKA_V_COPY].row_stride, PARAMS.dim_v, key, used)
            key++;
        } while (key < end);
    }
}
