#version 450
// fwd_tile: attention forward without matrix units; one query row per invocation (or ROWS of them).
//
//   q, acc in registers
//   for each step of KEYS keys that some row of the work group can see:
//       s     = q K^T                                K at addresses that are the same for a whole subgroup
//       s     = softcap, bias, mask                  only where span_full() does not rule it out
//       m'    = max(m, max s)    c = exp(m - m')
//       p     = exp(s - m')      l = c l + sum p
//       acc   = c acc + p V                          V likewise
//       now and then: acc is folded into a sum in memory, so that it stays short
//   if an unseen V row that is not finite spoilt acc (0 NaN = NaN): once more, key by key, with selects
//   O = acc / l,  LSE = m + log l
//
// Uniform addresses let the driver feed K and V to the multiply-add without a vector load: a broadcast operand on
// llvmpipe, a scalar load on AMD. Above d = 64 the head dimension is split over SPLIT groups of subgroups, which exchange
// partial scores through shared memory, one barrier a step. With SPLIT = 1 no subgroup feature and no shared memory is
// used. Everything but the way a tensor is reached is a specialization constant; src/kernels/fwd_tile.c repeats the sizes.
//
// After Dao 2023 (FlashAttention-2, arXiv:2307.08691), algorithm 1; K and V are not staged on chip, since the whole
// subgroup reads each element at once.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#include "lib/chunk.glsl"
#include "lib/item.glsl"
#include "lib/softmax.glsl"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;
layout(constant_id = VKA_ID_WORKGROUP) const uint WORKGROUP = 64;
layout(constant_id = VKA_ID_DIM_QK) const uint D = 64;
layout(constant_id = VKA_ID_DIM_V) const uint DV = 64;
layout(constant_id = VKA_ID_Q_TYPE) const uint Q_TYPE = VKA_TYPE_F32;
layout(constant_id = VKA_ID_KV_TYPE) const uint KV_TYPE = VKA_TYPE_F32;
layout(constant_id = VKA_ID_O_TYPE) const uint O_TYPE = VKA_TYPE_F32;
layout(constant_id = VKA_ID_ROWS) const uint ROWS = 1;
layout(constant_id = VKA_ID_KEYS) const uint KEYS = 8; // a multiple of 4 when SPLIT > 1
layout(constant_id = VKA_ID_QK_KEYS) const uint QK_KEYS = 8;
layout(constant_id = VKA_ID_PV_KEYS) const uint PV_KEYS = 8;
layout(constant_id = VKA_ID_SPLIT) const uint SPLIT = 1;
layout(constant_id = VKA_ID_SUBGROUP) const uint SUBGROUP = 0;
layout(constant_id = VKA_ID_UNPACKED) const uint UNPACKED = 0;
layout(constant_id = VKA_ID_FOLD) const uint FOLD = 0;

const uint LANES = WORKGROUP / SPLIT;        // invocations that hold different rows
const uint BLOCK_ROWS = LANES * ROWS;        // of the work group
const uint Q_CHUNKS = ((D + 3) / 4 + SPLIT - 1) / SPLIT; // of one part of a row
const uint V_CHUNKS = ((DV + 3) / 4 + SPLIT - 1) / SPLIT;
const uint KEY_CHUNKS = (KEYS + 3) / 4;
// The code that stores 16-bit types is long. Where there are sums in memory anyway, a loop reads them back from there,
// instead of as many copies of that code as there are chunks.
const bool STORE_FROM_SUMS = FOLD != 0 && O_TYPE != VKA_TYPE_F32;

INPUT(Q, VKA_Q)
INPUT(K, VKA_K)
INPUT(V, VKA_V)
INPUT(K_COPY, VKA_K_COPY)
INPUT(V_COPY, VKA_V_COPY)
OUTPUT(O, VKA_O)
OUTPUT(LSE, VKA_LSE)
OUTPUT(SUMS, VKA_SUMS)

DEFINE_CHUNK(load_q, Q, Q_TYPE, false)
DEFINE_CHUNK_STORE(store_o, O, O_TYPE)

// K and V: the caller's, which start on words, or the copies that kv_unpack made.
const uint KEY_TYPE = UNPACKED != 0 ? VKA_TYPE_F32 : KV_TYPE;
const uint K_TENSOR = UNPACKED != 0 ? VKA_K_COPY : VKA_K;
const uint V_TENSOR = UNPACKED != 0 ? VKA_V_COPY : VKA_V;
#if VKA_ADDRESS
// The address says which: one function for both halves what drivers have to inline.
DEFINE_CHUNK(load_k, K, KEY_TYPE, true)
DEFINE_CHUNK(load_v, V, KEY_TYPE, true)
#else
DEFINE_CHUNK(load_given_k, K, KV_TYPE, true)
DEFINE_CHUNK(load_given_v, V, KV_TYPE, true)
DEFINE_CHUNK(load_copied_k, K_COPY, VKA_TYPE_F32, true)
DEFINE_CHUNK(load_copied_v, V_COPY, VKA_TYPE_F32, true)

vec4 load_k(Slice row, uint c, uint n, bool whole, bool more)
{
    if (UNPACKED != 0)
        return load_copied_k(row, c, n, whole, more);
    return load_given_k(row, c, n, whole, more);
}

vec4 load_v(Slice row, uint c, uint n, bool whole, bool more)
{
    if (UNPACKED != 0)
        return load_copied_v(row, c, n, whole, more);
    return load_given_v(row, c, n, whole, more);
}
#endif

shared vec4 exchange[SPLIT > 1 ? 2 * SPLIT * KEY_CHUNKS * BLOCK_ROWS : 1];
shared bool spoilt;

vec4 q[ROWS * Q_CHUNKS], acc[ROWS * V_CHUNKS];
float s[ROWS * KEYS]; // scores of the step, then p
float factor[ROWS];   // of acc in this step
Softmax stats[ROWS];
int row[ROWS];        // clamped to the last that sees anything
uint part, lane, parity;
float since[ROWS];    // product of the factors since acc was last folded
bool folded;          // at least once
uvec4 largest;        // exponents of what was folded
uint q_left, v_left;  // elements of Q and V rows from this part's first one on
Member mem;
Span span;

// Chunk c of this part of a row. What is known of its end is constant except in the last part of an uneven split; where all
// chunks are whole it is so before loops are unrolled, which a driver's compiler is glad of.
const uint LAST_Q = (SPLIT - 1) * Q_CHUNKS, LAST_V = (SPLIT - 1) * V_CHUNKS;
#define CHUNK_OF(load, slice, c, left, last, dim) \
    load(slice, c, left, dim % (4 * SPLIT) == 0 || (last + (c)) * 4 + 4 <= dim, (last + (c)) * 4 + 5 <= dim)

float dot_onto(vec4 a, vec4 b, float c)
{
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, c))));
}

// Adds up the parts' scores of the first n keys (1 or KEYS). Two buffers make one barrier enough: who writes the first one
// again has passed the barrier of the second, which all reach after reading the first. Every part adds in the same order,
// so that all hold the same bits.
void join_parts(uint n)
{
    const uint base = parity * (SPLIT * KEY_CHUNKS * BLOCK_ROWS);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint k = 0; k < n; k += 4)
            exchange[base + ((part * KEY_CHUNKS + k / 4) * ROWS + r) * LANES + lane] =
                n == 1 ? vec4(s[r * KEYS]) : vec4(s[r * KEYS + k], s[r * KEYS + k + 1], s[r * KEYS + k + 2],
                                                  s[r * KEYS + k + 3]);
    barrier();
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint k = 0; k < n; k += 4) {
            vec4 sum = exchange[base + (k / 4 * ROWS + r) * LANES + lane];
            [[unroll]] for (uint x = 1; x < SPLIT; x++)
                sum += exchange[base + ((x * KEY_CHUNKS + k / 4) * ROWS + r) * LANES + lane];
            s[r * KEYS + k] = sum.x;
            if (n > 1) {
                s[r * KEYS + k + 1] = sum.y;
                s[r * KEYS + k + 2] = sum.z;
                s[r * KEYS + k + 3] = sum.w;
            }
        }
    parity ^= 1;
}

// Softmax of row r over the scores of keys j .. j + KEYS - 1; leaves p in s. `partial`: some may not be seen.
void update(uint r, int j, bool partial)
{
    bool seen[KEYS];
    bool any = !partial;
    float largest = negative_infinity();
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        float bias = 0.0;
        seen[k] = true;
        if (partial) {
            // Every lane reads inside the tensors, whatever it holds.
            const int key = min(j + int(k), span.end - 1);
            const bool inside = j + int(k) < span.end, shown = visible(mem, row[r], key, bias);
            seen[k] = shown && inside;
            any = any || seen[k];
        }
        float x = finish_score(s[r * KEYS + k], bias);
        x = mix(negative_infinity(), x, seen[k]);
        s[r * KEYS + k] = x;
        largest = max(largest, x);
    }
    const float last_m = stats[r].m;
    stats[r].m = any ? max(last_m, largest) : last_m;
    const float base = exponent_base(stats[r]);
    factor[r] = exp_difference(last_m, base);
    float sum = 0.0, test = 0.0;
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        // At most 0, or NaN where the score is NaN or +inf, which max() and exp() may hide.
        float x = s[r * KEYS + k] - base;
        x = mix(0.0, x, seen[k]);
        test += x;
        float p = exp(x);
        p = mix(0.0, p, seen[k]);
        s[r * KEYS + k] = p;
        sum += p;
    }
    const bool poison = is_nan(test);
    stats[r].poison = stats[r].poison || poison;
    stats[r].seen = stats[r].seen || any;
    softmax_add(stats[r], factor[r], sum);
}

void clear_acc()
{
    [[unroll]] for (uint n = 0; n < ROWS * V_CHUNKS; n++)
        acc[n] = vec4(0.0);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        since[r] = 1.0;
    folded = false;
}

// The row's folded sum, this part of it.
Slice sums_of(Item item, int i, uint v_first)
{
    return slice_at(tensor_slice(VKA_SUMS, item.b, item.h, 5), uint(i) * PARAMS.tensors[VKA_SUMS].row_stride + v_first, 5);
}

vec4 load_sum(Slice sums, uint c)
{
    return uintBitsToFloat(LOAD_OUTPUT_QUAD(SUMS, sums, c));
}

// sums = since sums + acc, acc = 0. Only the invocation itself reads what it wrote.
void fold(Item item, int first, uint v_first)
{
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const int i = first + int(r * LANES + lane);
        if (i < int(PARAMS.len_q)) {
            const Slice sums = sums_of(item, i, v_first);
            [[unroll]] for (uint c = 0; c < V_CHUNKS; c++)
                if (4 * c < v_left) {
                    vec4 x = acc[r * V_CHUNKS + c];
                    if (folded)
                        x = fma(load_sum(sums, c), vec4(since[r]), x);
                    largest = max(largest, floatBitsToUint(x) & INFINITY_BITS);
                    STORE_QUAD(SUMS, sums, c, floatBitsToUint(x));
                }
        }
    }
    clear_acc();
    folded = true;
}

// acc = since sums + acc
void unfold(Item item, int first, uint v_first)
{
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const int i = first + int(r * LANES + lane);
        if (i < int(PARAMS.len_q)) {
            const Slice sums = sums_of(item, i, v_first);
            [[unroll]] for (uint c = 0; c < V_CHUNKS; c++)
                if (4 * c < v_left)
                    acc[r * V_CHUNKS + c] = fma(load_sum(sums, c), vec4(since[r]), acc[r * V_CHUNKS + c]);
        }
    }
}

// Where the keys from j on stop that are added up before the next fold.
int fold_stop(int j, int keys)
{
    return FOLD != 0 ? min(span.end, j + keys) : span.end;
}

void fold_or_unfold(Item item, int first, uint v_first, bool more)
{
    if (FOLD != 0) {
        if (more || STORE_FROM_SUMS)
            fold(item, first, v_first);
        else if (folded)
            unfold(item, first, v_first);
    }
}

// One step of KEYS keys from j on. Keys past the last one that somebody sees are read as that one: an address beyond it
// may be anybody's.
void step(Slice k_slice, Slice v_slice, uint q_first, uint v_first, int j)
{
    Slice keys[KEYS];
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        const uint key = uint(min(j + int(k), span.end - 1));
        keys[k] = slice_at(k_slice, key * PARAMS.tensors[K_TENSOR].row_stride + q_first, type_log2(KEY_TYPE));
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            s[r * KEYS + k] = 0.0;
    }
    [[unroll]] for (uint g = 0; g < KEYS / QK_KEYS; g++)
        [[unroll]] for (uint c = 0; c < Q_CHUNKS; c++)
            [[unroll]] for (uint y = 0; y < QK_KEYS; y++) {
                const uint k = g * QK_KEYS + y;
                const vec4 x = CHUNK_OF(load_k, keys[k], c, q_left, LAST_Q, D);
                [[unroll]] for (uint r = 0; r < ROWS; r++)
                    s[r * KEYS + k] = dot_onto(q[r * Q_CHUNKS + c], x, s[r * KEYS + k]);
            }
    if (SPLIT > 1)
        join_parts(KEYS);

    const bool full = span_full(span, j, int(KEYS));
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        if (full)
            update(r, j, false);
        else
            update(r, j, true);
    }

    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        const uint key = uint(min(j + int(k), span.end - 1));
        keys[k] = slice_at(v_slice, key * PARAMS.tensors[V_TENSOR].row_stride + v_first, type_log2(KEY_TYPE));
    }
    [[unroll]] for (uint g = 0; g < KEYS / PV_KEYS; g++)
        [[unroll]] for (uint c = 0; c < V_CHUNKS; c++) {
            // The keys of a pass are added up first: a long sum loses bits with every addition to it.
            vec4 sum[ROWS];
            [[unroll]] for (uint y = 0; y < PV_KEYS; y++) {
                const uint k = g * PV_KEYS + y;
                const vec4 x = CHUNK_OF(load_v, keys[k], c, v_left, LAST_V, DV);
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    const vec4 scaled = g == 0 ? acc[r * V_CHUNKS + c] * factor[r] : acc[r * V_CHUNKS + c];
                    const vec4 p = vec4(s[r * KEYS + k]);
                    sum[r] = PV_KEYS == 1 ? fma(p, x, scaled) : y == 0 ? p * x : fma(p, x, sum[r]);
                }
            }
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                const vec4 whole = g == 0 ? fma(acc[r * V_CHUNKS + c], vec4(factor[r]), sum[r])
                                          : acc[r * V_CHUNKS + c] + sum[r];
                acc[r * V_CHUNKS + c] = PV_KEYS == 1 ? sum[r] : whole;
            }
        }
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        since[r] *= factor[r];
}

// One key of the second pass, whose V is selected away where it is not seen. m and l stand: they do not depend on V.
void step_selected(Slice k_slice, Slice v_slice, uint q_first, uint v_first, int j)
{
    const Slice key = slice_at(k_slice, uint(j) * PARAMS.tensors[K_TENSOR].row_stride + q_first, type_log2(KEY_TYPE));
    // Four chains: one chain of as many multiply-adds as the head is wide compiles for seconds on llvmpipe.
    vec4 dot[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        dot[r] = vec4(0.0);
    [[unroll]] for (uint c = 0; c < Q_CHUNKS; c++) {
        const vec4 x = CHUNK_OF(load_k, key, c, q_left, LAST_Q, D);
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            dot[r] = fma(q[r * Q_CHUNKS + c], x, dot[r]);
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        s[r * KEYS] = (dot[r].x + dot[r].y) + (dot[r].z + dot[r].w);
    if (SPLIT > 1)
        join_parts(1);
    bool seen[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float bias;
        seen[r] = visible(mem, row[r], j, bias);
        s[r * KEYS] = exp(finish_score(s[r * KEYS], bias) - exponent_base(stats[r]));
    }
    const Slice value = slice_at(v_slice, uint(j) * PARAMS.tensors[V_TENSOR].row_stride + v_first, type_log2(KEY_TYPE));
    [[unroll]] for (uint c = 0; c < V_CHUNKS; c++) {
        const vec4 x = CHUNK_OF(load_v, value, c, v_left, LAST_V, DV);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            const vec4 sum = fma(vec4(s[r * KEYS]), x, acc[r * V_CHUNKS + c]);
            acc[r * V_CHUNKS + c] = mix(acc[r * V_CHUNKS + c], sum, bvec4(seen[r]));
        }
    }
}

// Whether a row's accumulator holds what is not finite. With parts, all agree: there are barriers in what follows.
bool is_spoilt()
{
    [[unroll]] for (uint n = 0; n < ROWS * V_CHUNKS; n++)
        largest = max(largest, floatBitsToUint(acc[n]) & INFINITY_BITS);
    bool found = any(equal(largest, uvec4(INFINITY_BITS)));
    if (SPLIT > 1) {
        if (found)
            spoilt = true;
        barrier();
        found = spoilt;
    }
    return found;
}

// mix() is a select; glslang makes a branch of ?: here, and there are as many as chunks.
void store_chunk(Slice o, uint r, uint c, uint n, vec4 x)
{
    x = mix(vec4(0.0), x, bvec4(stats[r].seen));
    x = mix(x, uintBitsToFloat(uvec4(NAN_BITS)), bvec4(softmax_is_nan(stats[r])));
    store_o(o, c, n, x);
}

void finish(Item item, uint r, int i, uint v_first)
{
    float scale = 1.0;
    if (i >= mem.len_q)
        stats[r] = softmax_empty();
    if ((PARAMS.features & VKA_SINKS_ON) != 0)
        scale = softmax_sink(stats[r], uintBitsToFloat(LOAD_WORD(SINKS, tensor_slice(VKA_SINKS, 0, item.h, 5), 0)));
    scale *= softmax_inverse(stats[r]);

    const uint log2_bits = type_log2(O_TYPE);
    const Slice o = slice_at(tensor_slice(VKA_O, item.b, item.h, log2_bits),
                             uint(i) * PARAMS.tensors[VKA_O].row_stride + v_first, log2_bits);
    const uint v_own = min(v_left, 4 * V_CHUNKS); // the next part stores the rest
    const Slice sums = sums_of(item, i, v_first);
    if (STORE_FROM_SUMS) {
        uint c = 0;
        do {
            if (4 * c < v_own)
                store_chunk(o, r, c, v_own, load_sum(sums, c) * scale);
            c++;
        } while (c < V_CHUNKS);
    } else {
        [[unroll]] for (uint c = 0; c < V_CHUNKS; c++)
            store_chunk(o, r, c, v_own, acc[r * V_CHUNKS + c] * scale);
    }
    store_o_edges(o, v_own);
    if (part == 0 && (PARAMS.features & VKA_LSE_ON) != 0)
        STORE_WORD(LSE, tensor_slice(VKA_LSE, item.b, item.h, 5), uint(i) * PARAMS.tensors[VKA_LSE].row_stride,
                   floatBitsToUint(softmax_lse(stats[r])));
}

void main()
{
    Item item;
    if (!work_item(PARAMS.heads, item))
        return;
    mem = member(item.b, item.h);

    // The part must be known to be the same for a whole subgroup, or every load of K and V becomes a vector load;
    // gl_SubgroupID is.
    part = 0;
    lane = gl_LocalInvocationIndex;
    if (SPLIT > 1) {
        if (SUBGROUP != 0) {
            part = gl_SubgroupID / (LANES / SUBGROUP);
            lane = gl_SubgroupID % (LANES / SUBGROUP) * SUBGROUP + gl_SubgroupInvocationID;
        } else {
            part = gl_LocalInvocationIndex / LANES;
            lane = gl_LocalInvocationIndex % LANES;
        }
        if (gl_LocalInvocationIndex == 0)
            spoilt = false;
    }
    parity = 0;
    const uint q_first = part * Q_CHUNKS * 4, v_first = part * V_CHUNKS * 4;
    q_left = D > q_first ? D - q_first : 0;
    v_left = DV > v_first ? DV - v_first : 0;

    const Slice q_slice = tensor_slice(VKA_Q, item.b, item.h, type_log2(Q_TYPE));
    const Slice k_slice = tensor_slice(K_TENSOR, item.b, kv_head(item), type_log2(KEY_TYPE));
    const Slice v_slice = tensor_slice(V_TENSOR, item.b, kv_head(item), type_log2(KEY_TYPE));
    const int first = int(item.block * BLOCK_ROWS);
    span = key_span(mem, first, first + int(BLOCK_ROWS) - 1);
    clear_acc();
    largest = uvec4(0);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        stats[r] = softmax_empty();

    // Bottom-tested loops: llvmpipe runs the body of a top-tested one once more with no lane active, and does its uniform
    // loads.
    int j = span_next(span, span.begin);
    if (j < span.end) {
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            row[r] = min(first + int(r * LANES + lane), mem.len_q - 1);
            const Slice q_row = slice_at(q_slice, uint(row[r]) * PARAMS.tensors[VKA_Q].row_stride + q_first,
                                         type_log2(Q_TYPE));
            [[unroll]] for (uint c = 0; c < Q_CHUNKS; c++)
                q[r * Q_CHUNKS + c] = PARAMS.scale * CHUNK_OF(load_q, q_row, c, q_left, LAST_Q, D);
        }
        bool all_full = true;
        do {
            const int stop = fold_stop(j, int(FOLD));
            do {
                all_full = all_full && span_full(span, j, int(KEYS));
                step(k_slice, v_slice, q_first, v_first, j);
                j = span_next(span, j + int(KEYS));
            } while (j < stop);
            fold_or_unfold(item, first, v_first, j < span.end);
        } while (j < span.end);

        if (!all_full && is_spoilt()) {
            clear_acc();
            j = span_next(span, span.begin);
            do {
                const int stop = fold_stop(j, int(FOLD * PV_KEYS / KEYS));
                do {
                    step_selected(k_slice, v_slice, q_first, v_first, j);
                    j = span_next(span, j + 1);
                } while (j < stop);
                fold_or_unfold(item, first, v_first, j < span.end);
            } while (j < span.end);
        }
    }

    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const int i = first + int(r * LANES + lane);
        if (i < int(PARAMS.len_q))
            finish(item, r, i, v_first);
    }
}
