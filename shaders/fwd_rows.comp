#version 450
// fwd_rows: attention forward on any device, for any shape; one work group per query row.
//
//   for each tile of KEYS keys that the row's limits leave:
//       s    = score(i, j)                            invocations are keys
//       m'   = max(m, max s)     c = exp(m - m')      each invocation reads the whole tile of scores
//       p    = exp(s - m')                            invocations are keys
//       l    = c l + sum p                            as for m'
//       acc  = c acc + sum_j p_j V_j                  invocations are columns of V
//   O = acc / l,  LSE = m + log l
//
// One pipeline serves every problem: sizes, types and masks come from params. Needs no subgroup operation; shared memory
// is 2 * 576 + 2 KEYS words. Two barriers a tile. Keys that the row does not see are neither read nor multiplied.
// After Milakov and Gimelshein 2018 (arXiv:1805.02867), algorithm 3, over blocks.
#extension GL_GOOGLE_include_directive : require
#include "lib/item.glsl"
#include "lib/softmax.glsl"
#include "lib/score.glsl"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;
layout(constant_id = VKA_ID_WORKGROUP) const uint WORKGROUP = 64;
layout(constant_id = VKA_ID_KEYS) const uint KEYS = 128;

INPUT(V, VKA_V)
OUTPUT(O, VKA_O)
OUTPUT(LSE, VKA_LSE)

shared float acc[576]; // a column is its invocation's own
shared float s_tile[KEYS];
shared float p_tile[KEYS];

// What p_tile and s_tile hold for a key that the row does not see: a NaN of our own, which no score is, since a NaN score
// is replaced by one with other bits.
const uint UNSEEN_BITS = 0x7FC0DEADu;

bool is_unseen(float x)
{
    return floatBitsToUint(x) == UNSEEN_BITS;
}

// The largest score of the tile and what it says of the row; every invocation gets the same.
void take_scores(inout Softmax row, uint keys)
{
    for (uint n = 0; n < keys; n++) {
        const float s = s_tile[n];
        const bool seen = !is_unseen(s), poison = seen && is_poison(s);
        row.seen = row.seen || seen;
        row.poison = row.poison || poison;
        row.m = seen && !poison ? max(row.m, s) : row.m;
    }
}

void main()
{
    Item item;
    if (!work_item(PARAMS.heads, item))
        return;
    const uint lane = gl_LocalInvocationIndex;
    const int i = int(item.block);
    const Member m = member(item.b, item.h);
    const Span span = key_span(m, i, i);
    const uint dim_v = PARAMS.dim_v, kv_type = PARAMS.kv_type, o_type = PARAMS.o_type;
    const Slice v = tensor_slice(VKA_V, item.b, kv_head(item), type_log2(kv_type));
    const uint v_stride = PARAMS.tensors[VKA_V].row_stride;

    for (uint column = lane; column < dim_v; column += WORKGROUP)
        acc[column] = 0.0;
    stage_query(item, i, span.begin < span.end);
    const Slice k = key_slice(item);

    Softmax row = softmax_empty();
    for (int key = span_next(span, span.begin); key < span.end; key = span_next(span, key + int(KEYS))) {
        const uint keys = min(KEYS, uint(span.end - key));
        for (uint n = lane; n < keys; n += WORKGROUP) {
            float s = uintBitsToFloat(UNSEEN_BITS);
            if (pair_score(m, k, i, key + int(n), s))
                s = is_nan(s) ? uintBitsToFloat(NAN_BITS) : s;
            s_tile[n] = s;
        }
        barrier();

        const float last_m = row.m;
        take_scores(row, keys);
        const float factor = exp_difference(last_m, row.m);
        for (uint n = lane; n < keys; n += WORKGROUP) {
            const float s = s_tile[n];
            p_tile[n] = is_unseen(s) ? s : is_poison(s) ? 0.0 : exp_difference(s, row.m);
        }
        barrier();

        float sum = 0.0;
        for (uint n = 0; n < keys; n++)
            sum += is_unseen(p_tile[n]) ? 0.0 : p_tile[n];
        softmax_add(row, factor, sum);
        for (uint column = lane; column < dim_v; column += WORKGROUP) {
            // A tile's sum first: adding key by key to a long sum would lose bits of each.
            float a = 0.0;
            for (uint n = 0; n < keys; n++)
                if (!is_unseen(p_tile[n]))
                    a += p_tile[n] * LOAD_ELEMENT(V, v, (uint(key) + n) * v_stride + column, kv_type);
            acc[column] = acc[column] * factor + a;
        }
    }

    float factor = 1.0;
    if ((PARAMS.features & VKA_SINKS_ON) != 0)
        factor = softmax_sink(row, uintBitsToFloat(LOAD_WORD(SINKS, tensor_slice(VKA_SINKS, 0, item.h, 5), 0)));
    factor *= softmax_inverse(row);

    const Slice o = tensor_slice(VKA_O, item.b, item.h, type_log2(o_type));
    const uint o_row = uint(i) * PARAMS.tensors[VKA_O].row_stride;
    for (uint column = lane; column < dim_v; column += WORKGROUP) {
        const float value = softmax_is_nan(row) ? uintBitsToFloat(NAN_BITS) : row.seen ? acc[column] * factor : 0.0;
        STORE_ELEMENT(O, o, o_row + column, o_type, value)
    }
    if (lane == 0 && (PARAMS.features & VKA_LSE_ON) != 0)
        STORE_WORD(LSE, tensor_slice(VKA_LSE, item.b, item.h, 5), uint(i) * PARAMS.tensors[VKA_LSE].row_stride,
                   floatBitsToUint(softmax_lse(row)));
}
