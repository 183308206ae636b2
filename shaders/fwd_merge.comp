#version 450
// fwd_merge: two results over disjoint keys into one; one work group per query row.
//
//   M = max(LSE_1, LSE_2)     w_n = exp(LSE_n - M)
//   O = (w_1 O_1 + w_2 O_2) / (w_1 + w_2),  LSE = M + log(w_1 + w_2)
//
// Invocations are chunks of a row. One barrier: all have read both LSE before one of them is written, so that outputs may
// be the inputs. Each element of O is read by the invocation that writes it. After Milakov and Gimelshein 2018
// (arXiv:1805.02867), section 3.1.
#extension GL_GOOGLE_include_directive : require
#include "lib/chunk.glsl"
#include "lib/item.glsl"
#include "lib/join.glsl"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;

OUTPUT(FIRST_LSE, VKA_FIRST_LSE)
OUTPUT(SECOND_LSE, VKA_SECOND_LSE)
INPUT(FIRST_O, VKA_FIRST_O)
INPUT(SECOND_O, VKA_SECOND_O)
OUTPUT(O, VKA_O)
OUTPUT(LSE, VKA_LSE)

DEFINE_CHUNK(load_first, FIRST_O, PARAMS.kv_type, false)
DEFINE_CHUNK(load_second, SECOND_O, PARAMS.kv_type, false)
DEFINE_CHUNK_STORE(store_o, O, PARAMS.o_type)

Part part_with(uint lse)
{
    const float m = uintBitsToFloat(lse);
    return Part(m, 1.0, !is_negative_infinity(m), is_poison(m));
}

Slice row_of(uint tensor, Item item, uint log2_bits)
{
    return slice_at(tensor_slice(tensor, item.b, item.h, log2_bits), item.block * PARAMS.tensors[tensor].row_stride,
                    log2_bits);
}

void main()
{
    Item item;
    if (!work_item(PARAMS.heads, item))
        return;
    // As outputs: a load that may be reordered could be after the store of another invocation.
    const Part first = part_with(LOAD_OUTPUT_WORD(FIRST_LSE, row_of(VKA_FIRST_LSE, item, 5), 0));
    const Part second = part_with(LOAD_OUTPUT_WORD(SECOND_LSE, row_of(VKA_SECOND_LSE, item, 5), 0));
    memoryBarrierBuffer();
    barrier();

    const bool base_2 = (PARAMS.features & VKA_LSE_BASE_2) != 0;
    const float unit = base_2 ? 1.0 / LOG2_E : 1.0;
    Softmax row = softmax_empty();
    join_meet(row, first);
    join_meet(row, second);
    const float w1 = join_weight(row, first, unit), w2 = join_weight(row, second, unit), l = w1 + w2;

    const uint log2_in = type_log2(PARAMS.kv_type), log2_out = type_log2(PARAMS.o_type), dim = PARAMS.dim_v;
    const Slice o1 = row_of(VKA_FIRST_O, item, log2_in), o2 = row_of(VKA_SECOND_O, item, log2_in);
    const Slice o = row_of(VKA_O, item, log2_out);
    for (uint c = gl_LocalInvocationIndex; 4 * c < dim; c += gl_WorkGroupSize.x) {
        vec4 sum = vec4(0.0);
        if (first.seen)
            sum = w1 * load_first(o1, c, dim, false, false);
        if (second.seen)
            sum += w2 * load_second(o2, c, dim, false, false);
        sum = row.seen ? sum / l : vec4(0.0);
        sum = mix(sum, uintBitsToFloat(uvec4(NAN_BITS)), bvec4(row.poison));
        // A chunk is a row of its own, so that chunks may come in any order.
        const Slice chunk = slice_at(o, 4 * c, log2_out);
        store_o(chunk, 0, min(4, dim - 4 * c), false, sum);
        store_o_edges(chunk, min(4, dim - 4 * c));
    }
    if (gl_LocalInvocationIndex == 0 && (PARAMS.features & VKA_LSE_ON) != 0) {
        float lse = row.m + log(l) * (base_2 ? LOG2_E : 1.0);
        lse = row.seen ? lse : negative_infinity();
        lse = row.poison ? uintBitsToFloat(NAN_BITS) : lse;
        STORE_WORD(LSE, row_of(VKA_LSE, item, 5), 0, floatBitsToUint(lse));
    }
}
