// The score of one (query, key) pair for kernels whose invocations are keys: the query is staged in shared memory,
// scaled once in f32, and every invocation walks its own key's row.
#ifndef SCORE_GLSL
#define SCORE_GLSL

#include "lib/item.glsl"
#include "lib/mask.glsl"

INPUT(Q, VKA_Q)
INPUT(K, VKA_K)

shared float query[576];

// Ends with a barrier. A row that sees nothing may hold anything and is not read.
void stage_query(Item item, int i, bool used)
{
    const uint type = PARAMS.q_type;
    const Slice q = tensor_slice(VKA_Q, item.b, item.h, type_log2(type));
    const uint first = uint(i) * PARAMS.tensors[VKA_Q].row_stride;
    if (used)
        for (uint r = gl_LocalInvocationIndex; r < PARAMS.dim_qk; r += gl_WorkGroupSize.x)
            query[r] = PARAMS.scale * LOAD_ELEMENT(Q, q, first + r, type);
    barrier();
}

Slice key_slice(Item item)
{
    return tensor_slice(VKA_K, item.b, kv_head(item), type_log2(PARAMS.kv_type));
}

// False when row i does not see key j; then K is not read and `s` is left alone.
bool pair_score(Member m, Slice k, int i, int j, inout float s)
{
    float bias;
    if (!visible(m, i, j, bias))
        return false;
    const uint first = uint(j) * PARAMS.tensors[VKA_K].row_stride;
    float product = 0.0;
    for (uint r = 0; r < PARAMS.dim_qk; r++)
        product = fma(query[r], LOAD_ELEMENT(K, k, first + r, PARAMS.kv_type), product);
    s = finish_score(product, bias);
    return true;
}

#endif
