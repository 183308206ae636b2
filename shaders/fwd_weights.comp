#version 450
// fwd_weights: W[i,j] = exp(s[i,j] - LSE[i]) after any forward kernel; one work group per query row.
//
// Every element is written, 0 where the row does not see the key. Sizes, types and masks come from params.
#extension GL_GOOGLE_include_directive : require
#include "lib/softmax.glsl"
#include "lib/score.glsl"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;

INPUT(LSE, VKA_LSE)
OUTPUT(WEIGHTS, VKA_WEIGHTS)

void main()
{
    Item item;
    if (!work_item(PARAMS.heads, item))
        return;
    const int i = int(item.block);
    const Member m = member(item.b, item.h);
    const Span span = key_span(m, i, i);
    stage_query(item, i, span.begin < span.end);
    const Slice k = key_slice(item);
    const Slice w = tensor_slice(VKA_WEIGHTS, item.b, item.h, 5);
    const uint w_row = uint(i) * PARAMS.tensors[VKA_WEIGHTS].row_stride;
    float lse = uintBitsToFloat(LOAD_WORD(LSE, tensor_slice(VKA_LSE, item.b, item.h, 5),
                                          uint(i) * PARAMS.tensors[VKA_LSE].row_stride));
    if ((PARAMS.features & VKA_LSE_BASE_2) != 0)
        lse /= LOG2_E;

    for (int j = int(gl_LocalInvocationIndex); j < int(PARAMS.len_kv); j += int(gl_WorkGroupSize.x)) {
        float s, value = 0.0;
        if (j >= span.begin && j < span.end && pair_score(m, k, i, j, s))
            // At most 1: the forward kernel may have added up s in another order, and LSE may be less by the difference.
            value = is_nan(lse) ? lse : min(exp_difference(s, lse), 1.0);
        STORE_WORD(WEIGHTS, w, w_row + uint(j), floatBitsToUint(value));
    }
}
