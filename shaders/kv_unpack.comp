#version 450
// kv_unpack: K and V of a 16-bit type to f32 copies in the workspace, rows padded with zeros to four elements.
//
// For devices on which decoding in the inner loop costs more than a pass over K and V, and for rows that start in the
// middle of a word. Exact. One work group does KEYS keys of one (batch, kv head); invocations are chunks of a row. Keys
// that no query sees are not read: before the first and behind the last one that is seen, nothing is written; copies of those
// between are zeros.
#extension GL_GOOGLE_include_directive : require
#include "lib/chunk.glsl"
#include "lib/item.glsl"
#include "lib/mask.glsl"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;
layout(constant_id = VKA_ID_KEYS) const uint KEYS = 16;

INPUT(K, VKA_K)
INPUT(V, VKA_V)
OUTPUT(K_COPY, VKA_K_COPY)
OUTPUT(V_COPY, VKA_V_COPY)

DEFINE_CHUNK(load_k, K, PARAMS.kv_type, false)
DEFINE_CHUNK(load_v, V, PARAMS.kv_type, false)
DEFINE_CHUNK_STORE(store_k, K_COPY, VKA_TYPE_F32)
DEFINE_CHUNK_STORE(store_v, V_COPY, VKA_TYPE_F32)

#define COPY_ROW(load, store, from, from_stride, to, to_stride, dim, key, used) \
    { \
        const Slice source = slice_at(from, uint(key) * from_stride, 4); \
        const Slice target = slice_at(to, uint(key) * to_stride, 5); \
        for (uint c = gl_LocalInvocationIndex; 4 * c < dim; c += gl_WorkGroupSize.x) { \
            vec4 x = vec4(0.0); \
            if (used) \
                x = load(source, c, dim, false, false); \
            store(target, c, 4 * c + 4, true, x); \
        } \
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
    for (int key = begin; key < end; key++) {
        const bool used = span_next(span, key) == key;
        COPY_ROW(load_k, store_k, k, PARAMS.tensors[VKA_K].row_stride, k_copy, PARAMS.tensors[VKA_K_COPY].row_stride,
                 PARAMS.dim_qk, key, used)
        COPY_ROW(load_v, store_v, v, PARAMS.tensors[VKA_V].row_stride, v_copy, PARAMS.tensors[VKA_V_COPY].row_stride,
                 PARAMS.dim_v, key, used)
    }
}
