#version 450
// fwd_tile: attention forward without matrix units; one query row per invocation.
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
// partial scores through shared memory, one barrier a step. With SPLIT = 1 no shared memory is used, and with RUN_LANES =
// 0, too, no subgroup feature. Everything but the way a tensor is reached is a specialization constant;
// src/kernels/fwd_tile.c repeats the sizes.
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
layout(constant_id = VKA_ID_KEYS) const uint KEYS = 8; // a multiple of 4 when SPLIT > 1
layout(constant_id = VKA_ID_QK_KEYS) const uint QK_KEYS = 8;
layout(constant_id = VKA_ID_PV_KEYS) const uint PV_KEYS = 8;
layout(constant_id = VKA_ID_SPLIT) const uint SPLIT = 1;
layout(constant_id = VKA_ID_SUBGROUP) const uint SUBGROUP = 0;
layout(constant_id = VKA_ID_UNPACKED) const uint UNPACKED = 0;
layout(constant_id = VKA_ID_FOLD) const uint FOLD = 0;
layout(constant_id = VKA_ID_ROLLED) const uint ROLLED = 0;
layout(constant_id = VKA_ID_UNIFORM) const uint RUN_LANES = 0; // of a subgroup; with SPLIT = 1
#define RUN_KEYS KEYS
#include "lib/mask_run.glsl"

const uint BLOCK_ROWS = WORKGROUP / SPLIT; // of the work group: one to an invocation of each part
const uint Q_CHUNKS = ((D + 3) / 4 + SPLIT - 1) / SPLIT; // of one part of a row
const uint V_CHUNKS = ((DV + 3) / 4 + SPLIT - 1) / SPLIT;
const uint KEY_CHUNKS = (KEYS + 3) / 4;
const uint MOST_CHUNKS = Q_CHUNKS > V_CHUNKS ? Q_CHUNKS : V_CHUNKS;

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

vec4 q[Q_CHUNKS], acc[V_CHUNKS];
vec4 rolled[ROLLED != 0 ? MOST_CHUNKS : 1]; // in memory
float s[KEYS];  // scores of the step, then p
Slice keys[KEYS]; // rows of K, then of V
float factor;   // of acc in this step
Softmax stats;
int row;        // clamped to the last that sees anything
int first_row;  // of the subgroup, not clamped
uint part, lane, parity;
float since;    // product of the factors since acc was last folded
bool folded;    // at least once
uvec4 largest;  // exponents of what was folded
uint q_left, v_left;  // elements of Q and V rows from this part's first one on
Member mem;
Span span;

// Chunks of a part that lie inside the row and are not its last, in every part, and whether the others are whole. Loops over
// chunks are in two, so that what is known of a chunk's end is constant before a driver unrolls them: with a test in each
// chunk llvmpipe took 2 GB and 6 s to compile a head of 375.
const uint Q_LAST = (SPLIT - 1) * Q_CHUNKS, V_LAST = (SPLIT - 1) * V_CHUNKS;
const uint Q_INNER = (D + 3) / 4 > Q_LAST + 1 ? (D + 3) / 4 - 1 - Q_LAST : 0;
const uint V_INNER = (DV + 3) / 4 > V_LAST + 1 ? (DV + 3) / 4 - 1 - V_LAST : 0;
const bool Q_WHOLE = D % (4 * SPLIT) == 0, V_WHOLE = DV % (4 * SPLIT) == 0;

// EACH_CHUNK(V, f): f(c, inner) for all chunks of a part
#define EACH_CHUNK(PART, CALL) \
    { \
        [[unroll]] for (uint c = 0; c < PART##_INNER; c++) \
            CALL(c, true); \
        [[unroll]] for (uint c = 0; c < PART##_CHUNKS - PART##_INNER; c++) \
            CALL(PART##_INNER + c, false); \
    }

// UPDATE_CHUNKS(V, acc, f): f(c, inner, x) for all chunks of a part, which changes acc[c] in x. For what is done once a row:
// with ROLLED it is one copy of f in a loop over an array in memory. llvmpipe makes of a load or store whose addresses differ
// by lane a branch for each lane, and its register allocator walks all branches for each value that lives across them: f16
// of d = 64 took 1.8 times as long to compile with a copy for each chunk, and d = 128 twice as long.
#define UPDATE_CHUNKS(PART, X, CALL) \
    if (ROLLED != 0) { \
        [[unroll]] for (uint c = 0; c < PART##_CHUNKS; c++) \
            rolled[c] = X[c]; \
        uint at = 0; \
        do { \
            vec4 x = rolled[at]; \
            CALL(at, false, x); \
            rolled[at] = x; \
            at++; \
        } while (at < PART##_CHUNKS); \
        [[unroll]] for (uint c = 0; c < PART##_CHUNKS; c++) \
            X[c] = rolled[c]; \
    } else { \
        [[unroll]] for (uint c = 0; c < PART##_INNER; c++) \
            CALL(c, true, X[c]); \
        [[unroll]] for (uint c = 0; c < PART##_CHUNKS - PART##_INNER; c++) \
            CALL(PART##_INNER + c, false, X[PART##_INNER + c]); \
    }

// On a CPU the chunk's sum is added to c as a whole. llvmpipe of Mesa 26.2 (LLVM 22) computes one key after another, and D
// multiply-adds that wait for each other took 1.6 times as long; Mesa 26.1 takes both forms alike. On AMD, whose tiles ask
// for a subgroup size, the addition costs 14% of the vector instructions.
const bool IN_CHUNKS = SPLIT == 1 && SUBGROUP == 0;

float dot_onto(vec4 a, vec4 b, float c)
{
    const float first = IN_CHUNKS ? a.x * b.x : fma(a.x, b.x, c);
    const float sum = fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, first)));
    return IN_CHUNKS ? c + sum : sum;
}

// Adds up the parts' scores of the first n keys (1 or KEYS). Two buffers make one barrier enough: who writes the first one
// again has passed the barrier of the second, which all reach after reading the first. Every part adds in the same order,
// so that all hold the same bits.
void join_parts(uint n)
{
    const uint base = parity * (SPLIT * KEY_CHUNKS * BLOCK_ROWS);
    [[unroll]] for (uint k = 0; k < n; k += 4)
        exchange[base + (part * KEY_CHUNKS + k / 4) * BLOCK_ROWS + lane] =
            n == 1 ? vec4(s[k]) : vec4(s[k], s[k + 1], s[k + 2], s[k + 3]);
    barrier();
    [[unroll]] for (uint k = 0; k < n; k += 4) {
        vec4 sum = exchange[base + k / 4 * BLOCK_ROWS + lane];
        [[unroll]] for (uint x = 1; x < SPLIT; x++)
            sum += exchange[base + (x * KEY_CHUNKS + k / 4) * BLOCK_ROWS + lane];
        s[k] = sum.x;
        if (n > 1) {
            s[k + 1] = sum.y;
            s[k + 2] = sum.z;
            s[k + 3] = sum.w;
        }
    }
    parity ^= 1;
}

// Softmax over the scores of keys j .. j + KEYS - 1; leaves p in s. `partial`: some may not be seen.
void update(int j, bool partial)
{
    bool seen[KEYS];
    bool any = !partial;
    float largest = negative_infinity();
    // Every lane reads inside the tensors, whatever it holds.
    if (partial)
        load_runs(mem, row, first_row, j, span.end - 1);
    const Reach reach = reach_of(mem, row);
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        float bias = 0.0;
        seen[k] = true;
        if (partial) {
            seen[k] = visible_in_run(mem, reach, row, j + int(k), k, bias);
            any = any || seen[k];
        }
        float x = finish_score(s[k], bias);
        x = mix(negative_infinity(), x, seen[k]);
        s[k] = x;
        largest = max(largest, x);
    }
    const float last_m = stats.m;
    stats.m = any ? max(last_m, largest) : last_m;
    const float base = exponent_base(stats);
    factor = exp_difference(last_m, base);
    float sum = 0.0, test = 0.0;
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        // At most 0, or NaN where the score is NaN or +inf, which max() and exp() may hide.
        float x = s[k] - base;
        x = mix(0.0, x, seen[k]);
        test += x;
        float p = exp(x);
        p = mix(0.0, p, seen[k]);
        s[k] = p;
        sum += p;
    }
    const bool poison = is_nan(test);
    stats.poison = stats.poison || poison;
    stats.seen = stats.seen || any;
    softmax_add(stats, factor, sum);
}

void clear_acc()
{
    [[unroll]] for (uint c = 0; c < V_CHUNKS; c++)
        acc[c] = vec4(0.0);
    since = 1.0;
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

void fold_chunk(Slice sums, uint c, bool store, inout vec4 x)
{
    // The last part of an uneven split may have fewer chunks. The test is in all of them, since without it RADV has the
    // loads of all chunks in flight, for 48 more registers.
    if ((SPLIT > 1 || SUBGROUP != 0) && 4 * (part * V_CHUNKS + c) >= PARAMS.dim_v)
        return;
    if (folded)
        x = fma(load_sum(sums, c), vec4(since), x);
    if (store) {
        largest = max(largest, floatBitsToUint(x) & INFINITY_BITS);
        STORE_QUAD(SUMS, sums, c, floatBitsToUint(x));
        x = vec4(0.0);
    }
}

// sums = since sums + acc, acc = 0; or, not to `store`, acc = since sums + acc. Only the invocation itself reads what it
// wrote.
void fold(Item item, int i, uint v_first, bool store)
{
    const Slice sums = sums_of(item, i, v_first);
    if (i < int(PARAMS.len_q)) {
#define FOLD_CHUNK(c, inner, x) fold_chunk(sums, c, store, x)
        UPDATE_CHUNKS(V, acc, FOLD_CHUNK)
    }
    since = 1.0;
    folded = true;
}

// Where the keys from j on stop that are added up before the next fold.
int fold_stop(int j, int keys)
{
    return FOLD != 0 ? min(span.end, j + keys) : span.end;
}

void end_of_fold(Item item, int i, uint v_first, bool more)
{
    if (FOLD != 0 && (more || folded))
        fold(item, i, v_first, more);
}

// Bases of rows j .. j + KEYS - 1 into keys. Past the last one that somebody sees, that one again: an address beyond it may
// be anybody's.
void point_keys(Slice slice, uint tensor, uint first, int j)
{
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        const uint key = uint(min(j + int(k), span.end - 1));
        keys[k] = slice_at(slice, key * PARAMS.tensors[tensor].row_stride + first, type_log2(KEY_TYPE));
    }
}

void score_chunk(uint group, uint c, bool inner)
{
    [[unroll]] for (uint y = 0; y < QK_KEYS; y++) {
        const uint k = group * QK_KEYS + y;
        s[k] = dot_onto(q[c], load_k(keys[k], c, q_left, inner || Q_WHOLE, inner), s[k]);
    }
}

// The keys of a pass are added up first: a long sum loses bits with every addition to it.
void value_chunk(uint group, uint c, bool inner)
{
    vec4 sum;
    [[unroll]] for (uint y = 0; y < PV_KEYS; y++) {
        const uint k = group * PV_KEYS + y;
        const vec4 x = load_v(keys[k], c, v_left, inner || V_WHOLE, inner);
        const vec4 scaled = group == 0 ? acc[c] * factor : acc[c];
        const vec4 p = vec4(s[k]);
        sum = PV_KEYS == 1 ? fma(p, x, scaled) : y == 0 ? p * x : fma(p, x, sum);
    }
    const vec4 whole = group == 0 ? fma(acc[c], vec4(factor), sum) : acc[c] + sum;
    acc[c] = PV_KEYS == 1 ? sum : whole;
}

// One step of KEYS keys from j on.
void step(Slice k_slice, Slice v_slice, uint q_first, uint v_first, int j)
{
    point_keys(k_slice, K_TENSOR, q_first, j);
    [[unroll]] for (uint k = 0; k < KEYS; k++)
        s[k] = 0.0;
    [[unroll]] for (uint group = 0; group < KEYS / QK_KEYS; group++)
#define SCORE_CHUNK(c, inner) score_chunk(group, c, inner)
        EACH_CHUNK(Q, SCORE_CHUNK)
    if (SPLIT > 1)
        join_parts(KEYS);

    if (span_full(span, j, int(KEYS)))
        update(j, false);
    else
        update(j, true);

    point_keys(v_slice, V_TENSOR, v_first, j);
    [[unroll]] for (uint group = 0; group < KEYS / PV_KEYS; group++)
#define VALUE_CHUNK(c, inner) value_chunk(group, c, inner)
        EACH_CHUNK(V, VALUE_CHUNK)
    since *= factor;
}

void select_value_chunk(Slice value, uint c, bool inner, bool seen)
{
    const vec4 sum = fma(vec4(s[0]), load_v(value, c, v_left, inner || V_WHOLE, inner), acc[c]);
    acc[c] = mix(acc[c], sum, bvec4(seen));
}

// One key of the second pass, whose V is selected away where it is not seen. m and l stand: they do not depend on V.
void step_selected(Slice k_slice, Slice v_slice, uint q_first, uint v_first, int j)
{
    const Slice key = slice_at(k_slice, uint(j) * PARAMS.tensors[K_TENSOR].row_stride + q_first, type_log2(KEY_TYPE));
    // The sums of step(), in its order: a score that rounded otherwise could lie above m by more than exp() takes.
    s[0] = 0.0;
#define DOT_CHUNK(c, inner) s[0] = dot_onto(q[c], load_k(key, c, q_left, inner || Q_WHOLE, inner), s[0])
    EACH_CHUNK(Q, DOT_CHUNK)
    if (SPLIT > 1)
        join_parts(1);
    float bias;
    const bool seen = visible(mem, row, j, bias);
    s[0] = exp(min(finish_score(s[0], bias) - exponent_base(stats), 0.0));
    const Slice value = slice_at(v_slice, uint(j) * PARAMS.tensors[V_TENSOR].row_stride + v_first, type_log2(KEY_TYPE));
#define SELECT_CHUNK(c, inner) select_value_chunk(value, c, inner, seen)
    EACH_CHUNK(V, SELECT_CHUNK)
}

// Whether the row's accumulator holds what is not finite. With parts, all agree: there are barriers in what follows.
bool is_spoilt()
{
    [[unroll]] for (uint c = 0; c < V_CHUNKS; c++)
        largest = max(largest, floatBitsToUint(acc[c]) & INFINITY_BITS);
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
void store_chunk(Slice o, uint c, bool inner, float scale, vec4 sum)
{
    vec4 x = mix(vec4(0.0), sum * scale, bvec4(stats.seen));
    x = mix(x, uintBitsToFloat(uvec4(NAN_BITS)), bvec4(softmax_is_nan(stats)));
    store_o(o, c, min(v_left, 4 * V_CHUNKS), inner || V_WHOLE, x); // the next part stores the rest
}

void finish(Item item, int i, uint v_first)
{
    float scale = 1.0;
    if (i >= mem.len_q)
        stats = softmax_empty();
    if ((PARAMS.features & VKA_SINKS_ON) != 0)
        scale = softmax_sink(stats, uintBitsToFloat(LOAD_WORD(SINKS, tensor_slice(VKA_SINKS, 0, item.h, 5), 0)));
    scale *= softmax_inverse(stats);

    const uint log2_bits = type_log2(O_TYPE);
    const Slice o = slice_at(tensor_slice(VKA_O, item.b, item.h, log2_bits),
                             uint(i) * PARAMS.tensors[VKA_O].row_stride + v_first, log2_bits);
#define STORE_CHUNK(c, inner, x) store_chunk(o, c, inner, scale, x)
    UPDATE_CHUNKS(V, acc, STORE_CHUNK)
    store_o_edges(o, min(v_left, 4 * V_CHUNKS));
    if (part == 0 && (PARAMS.features & VKA_LSE_ON) != 0)
        STORE_WORD(LSE, tensor_slice(VKA_LSE, item.b, item.h, 5), uint(i) * PARAMS.tensors[VKA_LSE].row_stride,
                   floatBitsToUint(softmax_lse(stats)));
}

void load_query(Slice q_slice, uint q_first)
{
    const Slice q_row = slice_at(q_slice, uint(row) * PARAMS.tensors[VKA_Q].row_stride + q_first, type_log2(Q_TYPE));
#define QUERY_CHUNK(c, inner, x) x = PARAMS.scale * load_q(q_row, c, q_left, inner || Q_WHOLE, inner)
    UPDATE_CHUNKS(Q, q, QUERY_CHUNK)
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
            part = gl_SubgroupID / (BLOCK_ROWS / SUBGROUP);
            lane = gl_SubgroupID % (BLOCK_ROWS / SUBGROUP) * SUBGROUP + gl_SubgroupInvocationID;
        } else {
            part = gl_LocalInvocationIndex / BLOCK_ROWS;
            lane = gl_LocalInvocationIndex % BLOCK_ROWS;
        }
        if (gl_LocalInvocationIndex == 0)
            spoilt = false;
    }
    if (RUN_LANES != 0)
        lane = gl_SubgroupID * RUN_LANES + gl_SubgroupInvocationID;
    parity = 0;
    const uint q_first = part * Q_CHUNKS * 4, v_first = part * V_CHUNKS * 4;
    q_left = D > q_first ? D - q_first : 0;
    v_left = DV > v_first ? DV - v_first : 0;

    const Slice q_slice = tensor_slice(VKA_Q, item.b, item.h, type_log2(Q_TYPE));
    const Slice k_slice = tensor_slice(K_TENSOR, item.b, kv_head(item), type_log2(KEY_TYPE));
    const Slice v_slice = tensor_slice(V_TENSOR, item.b, kv_head(item), type_log2(KEY_TYPE));
    const int first = int(item.block * BLOCK_ROWS), i = first + int(lane);
    span = key_span(mem, first, first + int(BLOCK_ROWS) - 1);
    clear_acc();
    largest = uvec4(0);
    stats = softmax_empty();

    // Bottom-tested loops: llvmpipe runs the body of a top-tested one once more with no lane active, and does its uniform
    // loads. Both passes are one loop, for the sake of one copy of the folding code.
    if (span_next(span, span.begin) < span.end) {
        row = min(i, mem.len_q - 1);
        first_row = first + int(RUN_LANES != 0 ? gl_SubgroupID * RUN_LANES : 0);
        load_query(q_slice, q_first);
        bool all_full = true, selected = false, again;
        do {
            int j = span_next(span, span.begin);
            do {
                if (selected) {
                    const int stop = fold_stop(j, int(FOLD / PV_KEYS)); // as many terms
                    do {
                        step_selected(k_slice, v_slice, q_first, v_first, j);
                        j = span_next(span, j + 1);
                    } while (j < stop);
                } else {
                    const int stop = fold_stop(j, int(FOLD));
                    do {
                        all_full = all_full && span_full(span, j, int(KEYS));
                        step(k_slice, v_slice, q_first, v_first, j);
                        j = span_next(span, j + int(KEYS));
                    } while (j < stop);
                }
                end_of_fold(item, i, v_first, j < span.end);
            } while (j < span.end);
            again = !selected && !all_full && is_spoilt();
            if (again) {
                clear_acc();
                selected = true; // so written, it is seen to be the same for all lanes, and K and V to be uniform
            }
        } while (again);
    }

    if (i < int(PARAMS.len_q))
        finish(item, i, v_first);
}
