#version 450
// fwd_combine: joins the parts of a forward kernel that cuts the keys; one work group per query row.
//
//   M = max m_part     l = sum_part l_part exp(m_part - M)
//   O = sum_part exp(m_part - M) PARTS_part / l,  LSE = M + log l
//
// The sink belongs to the whole row and is taken in here. Invocations are chunks of a row. No shared memory, no barrier.
// After Milakov and Gimelshein 2018 (arXiv:1805.02867), section 3.1.
#extension GL_GOOGLE_include_directive : require
#include "lib/chunk.glsl"
#include "lib/item.glsl"
#include "lib/join.glsl"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;

INPUT(PARTS, VKA_PARTS)
INPUT(STATS, VKA_STATS)
OUTPUT(O, VKA_O)
OUTPUT(LSE, VKA_LSE)

DEFINE_CHUNK_STORE(store_o, O, PARAMS.o_type)

Part part_at(Slice stats, uint n)
{
    const uvec4 x = LOAD_QUAD(STATS, stats, n);
    return Part(uintBitsToFloat(x.x), uintBitsToFloat(x.y), (x.z & VKA_PART_SEEN) != 0, (x.z & VKA_PART_POISON) != 0);
}

void main()
{
    Item item;
    if (!work_item(PARAMS.heads, item))
        return;
    const uint i = item.block, parts = PARAMS.parts, stride = PARAMS.tensors[VKA_PARTS].row_stride;
    const Slice stats = slice_at(tensor_slice(VKA_STATS, item.b, item.h, 5), i * parts * 4, 5);
    const Slice sums = slice_at(tensor_slice(VKA_PARTS, item.b, item.h, 5), i * parts * stride, 5);

    Softmax row = softmax_empty();
    for (uint n = 0; n < parts; n++)
        join_meet(row, part_at(stats, n));
    for (uint n = 0; n < parts; n++)
        join_add(row, part_at(stats, n), 1.0);
    const Softmax joined = row;
    float factor = 1.0;
    if ((PARAMS.features & VKA_SINKS_ON) != 0)
        factor = softmax_sink(row, uintBitsToFloat(LOAD_WORD(SINKS, tensor_slice(VKA_SINKS, 0, item.h, 5), 0)));
    factor *= softmax_inverse(row);

    const uint log2_bits = type_log2(PARAMS.o_type), dim = PARAMS.dim_v;
    const Slice o = slice_at(tensor_slice(VKA_O, item.b, item.h, log2_bits), i * PARAMS.tensors[VKA_O].row_stride,
                             log2_bits);
    for (uint c = gl_LocalInvocationIndex; 4 * c < dim; c += gl_WorkGroupSize.x) {
        vec4 sum = vec4(0.0);
        for (uint n = 0; n < parts; n++) {
            const Part part = part_at(stats, n);
            if (part.seen)
                sum += join_weight(joined, part, 1.0) * uintBitsToFloat(LOAD_QUAD(PARTS, sums, n * (stride / 4) + c));
        }
        sum = row.seen ? sum * factor : vec4(0.0);
        sum = mix(sum, uintBitsToFloat(uvec4(NAN_BITS)), bvec4(softmax_is_nan(row)));
        // A chunk is a row of its own, so that chunks may come in any order.
        const Slice chunk = slice_at(o, 4 * c, log2_bits);
        store_o(chunk, 0, min(4, dim - 4 * c), false, sum);
        store_o_edges(chunk, min(4, dim - 4 * c));
    }
    if (gl_LocalInvocationIndex == 0 && (PARAMS.features & VKA_LSE_ON) != 0)
        STORE_WORD(LSE, tensor_slice(VKA_LSE, item.b, item.h, 5), i * PARAMS.tensors[VKA_LSE].row_stride,
                   floatBitsToUint(softmax_lse(row)));
}
