#version 450
// fwd_coopmat: attention forward on matrix units (GL_KHR_cooperative_matrix). A subgroup has MATRIX_N query rows; the
// subgroups of a work group share what is staged of K and V.
//
//   q = Q^T as operands B, in registers
//   for each step of KEYS keys that some row of the work group can see:
//       stage K, and V transposed, in shared memory                                       all subgroups together
//       S^T     = K q                                     accumulators, stored as rows of scores, one per query
//       m'      = max(m, max s)    c = exp(m - m')        invocations are queries, or parts of their keys
//       p       = exp(s - m')      l = c l + sum p        p over s in shared memory, rounded to the operands' type
//       acc^T   = c acc^T + V^T P^T                       c is a matrix of equal rows: a load with stride 0
//   if V that is not finite spoilt acc (0 NaN = NaN): once more without it; then it alone decides where a row sees it
//   O = acc / l,  LSE = m + log l
//
// S and O are transposed so that a query is a column: its factor is one number per invocation of an accumulator.
// Nothing is assumed of how matrices lie in registers. The products of a step are summed by themselves and then added:
// one addition to acc per step, rounded to nearest whatever the matrix unit does.
//
// Two work group barriers a step; between them a subgroup minds its own rows. Shared memory: K and V of a step, and
// MATRIX_N rows of scores per subgroup, which hold Q before and O behind the loop; src/kernels/fwd_coopmat.c has the sum.
//
// After Dao 2023 (FlashAttention-2, arXiv:2307.08691), algorithm 1; the division of labour is from measurements,
// docs/tuning.md.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "lib/dtype.glsl"
#include "lib/item.glsl"
#include "lib/softmax.glsl"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;
layout(constant_id = VKA_ID_WORKGROUP) const uint WORKGROUP = 32;
layout(constant_id = VKA_ID_DIM_QK) const uint D = 64;
layout(constant_id = VKA_ID_DIM_V) const uint DV = 64;
layout(constant_id = VKA_ID_O_TYPE) const uint O_TYPE = VKA_TYPE_F32;
layout(constant_id = VKA_ID_KEYS) const uint KEYS = 32; // a multiple of 16, of MATRIX_M and of MATRIX_K
layout(constant_id = VKA_ID_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = VKA_ID_MATRIX_M) const uint M = 16;
layout(constant_id = VKA_ID_MATRIX_N) const uint N = 16;
layout(constant_id = VKA_ID_MATRIX_K) const uint K_DIM = 16;
layout(constant_id = VKA_ID_SHIFTED) const uint SHIFTED = 0; // rows of K and V may start in mid-word
layout(constant_id = VKA_ID_SKIP) const uint SKIP = 0; // subgroups whose rows see nothing of a step leave it out

const uint TYPE = VKA_TYPE_F16;
#define HALF float16_t

// Operands are read eight elements (an octet, one uvec4) at a time; heads are filled up with zeros to whole matrices.
const uint WAVES = WORKGROUP / SUBGROUP;
const uint BLOCK_ROWS = WAVES * N;
const uint Q_TILES = (D + K_DIM - 1) / K_DIM;
const uint D_OCTETS = (Q_TILES * K_DIM + 7) / 8;
const uint V_TILES = (DV + M - 1) / M;
const uint V_OCTETS = (V_TILES * M + 7) / 8;
const uint KEY_TILES = KEYS / M;
const uint PV_TILES = KEYS / K_DIM;

// Row strides in shared memory, in uvec4: one more than the row, so that neighbours lie in other banks.
const uint K_STRIDE = D_OCTETS + 1;
const uint V_STRIDE = KEYS / 8 + 1;
const uint S_STRIDE = KEYS / 4 + 1;
// A matrix of V^T, with 16 bytes between two: an invocation stages eight rows of it, and so do its neighbours.
const uint V_TILE = M * V_STRIDE + 1;
shared uvec4 k_stage[KEYS * K_STRIDE];
const uint V_STAGE = (V_OCTETS * 8 + M - 1) / M * V_TILE;
shared uvec4 v_stage[V_STAGE];
shared uvec4 scores[BLOCK_ROWS * S_STRIDE];
shared vec4 factors[BLOCK_ROWS / 4]; // a matrix is to be loaded from a multiple of 16 bytes
shared bool spoilt;

// Softmax: PARTS invocations have a query, or one has OWN of them. A part is whole octets.
const uint OWN = N > SUBGROUP ? N / SUBGROUP : 1; // at most 4
const uint PARTS = N > SUBGROUP ? 1 : SUBGROUP / N;
const uint OWN_KEYS = KEYS / PARTS; // at most 32

#define ACCUMULATOR coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define OPERAND_A coopmat<HALF, gl_ScopeSubgroup, M, K_DIM, gl_MatrixUseA>
#define OPERAND_B coopmat<HALF, gl_ScopeSubgroup, K_DIM, N, gl_MatrixUseB>
#define ROWS gl_CooperativeMatrixLayoutRowMajor
#define COLUMNS gl_CooperativeMatrixLayoutColumnMajor

INPUT(Q, VKA_Q)
INPUT(K, VKA_K)
INPUT(V, VKA_V)
OUTPUT(O, VKA_O)
OUTPUT(LSE, VKA_LSE)

OPERAND_B q[Q_TILES];
ACCUMULATOR acc[V_TILES];
Softmax stats[OWN];
float s[OWN * OWN_KEYS]; // scores of the step, then p
Member mem;
Span span, wave_span;    // of the work group's rows, of the subgroup's
uint wave, first_row;    // the subgroup's
uint part, own_query;    // the invocation's
bool careful;            // second time: V that is not finite counts as 0

// Defines uvec4 NAME(row, c, n): the octet c of the n elements that begin at `row`, zeros behind them. No word is read that
// holds no element of the row. Constants: ODD, the row may start in mid-word; WHOLE, octets have all of their elements.
#define DEFINE_OCTET(NAME, TENSOR, ODD, WHOLE) \
    uvec4 NAME(Slice row, uint c, uint n) \
    { \
        uvec4 x = uvec4(0); \
        const uint e = 8 * c; \
        const bool odd = row.skew != 0; \
        if (WHOLE || e + 8 <= n) { \
            x = LOAD_QUAD(TENSOR, row, c); \
            if (ODD && odd) { \
                const uint next = LOAD_WORD(TENSOR, row, 4 * c + 4); \
                x = (x >> 16) | (uvec4(x.yzw, next) << 16); \
            } \
        } else if (n % 8 != 0 && e < n) { \
            const uint end = n + (ODD ? row.skew : 0); \
            x.x = LOAD_WORD(TENSOR, row, 4 * c); \
            if (e + 2 < end) \
                x.y = LOAD_WORD(TENSOR, row, 4 * c + 1); \
            if (e + 4 < end) \
                x.z = LOAD_WORD(TENSOR, row, 4 * c + 2); \
            if (e + 6 < end) \
                x.w = LOAD_WORD(TENSOR, row, 4 * c + 3); \
            if (ODD && odd) \
                x = (x >> 16) | (uvec4(x.yzw, 0) << 16); \
            /* The rest of a word may be a neighbour's, NaN included. */ \
            const uint left = n - e; \
            const uvec4 first = uvec4(0, 2, 4, 6); \
            x &= mix(mix(uvec4(0xFFFFFFFFu), uvec4(0xFFFFu), equal(first + 1, uvec4(left))), uvec4(0), \
                     greaterThanEqual(first, uvec4(left))); \
        } \
        return x; \
    }
DEFINE_OCTET(load_q, Q, true, false)
DEFINE_OCTET(load_k, K, SHIFTED != 0, D == 8 * D_OCTETS)
DEFINE_OCTET(load_v, V, SHIFTED != 0, DV == 8 * V_OCTETS)

Slice row_at(uint tensor, Slice slice, uint row)
{
    return slice_at(slice, row * PARAMS.tensors[tensor].row_stride, 4);
}

// The exponent of a half that is not finite, and a word of two without such.
const uint HALF_EXPONENT = 0x7C00u;

uint finite_halves(uint x)
{
    const uint low = mix(x & 0xFFFFu, 0, (x & HALF_EXPONENT) == HALF_EXPONENT);
    const uint high = mix(x & 0xFFFF0000u, 0, (x & HALF_EXPONENT << 16) == HALF_EXPONENT << 16);
    return low | high;
}

uint pack_p(float a, float b)
{
    // packHalf2x16 may round towards zero.
    return packFloat2x16(f16vec2(vec2(a, b)));
}

// The low halves of two words, and the high ones; of a driver that is a byte permutation.
uint pack_low(uint a, uint b)
{
    return packFloat2x16(f16vec2(unpackFloat2x16(a).x, unpackFloat2x16(b).x));
}

uint pack_high(uint a, uint b)
{
    return packFloat2x16(f16vec2(unpackFloat2x16(a).y, unpackFloat2x16(b).y));
}

// Where an invocation reads K or V: its octet of its first key of a step, and of the last key that somebody sees. Keys past
// that are read as that one: an address beyond it may be anybody's. Bytes; a slice has less than 2^32.
struct Lane {
    uint first, last, row;
};
Lane k_lane, v_lane;

Lane lane_at(uint tensor, uint key, uint c)
{
    const uint row = PARAMS.tensors[tensor].row_stride * 2;
    return Lane(key * row + 16 * c, uint(span.end - 1) * row + 16 * c, row);
}

Slice octet_at(Slice slice, Lane lane, uint key)
{
    const uint bytes = min(lane.first + key * lane.row, lane.last);
#if VKA_ADDRESS
    slice.first = add64(slice.first, uvec2(bytes, 0));
#else
    slice.first.x += bytes >> 2;
#endif
    return slice;
}

Slice row_at_key(uint tensor, Slice slice, uint key)
{
    return row_at(tensor, slice, min(key, uint(span.end) - 1));
}

// Where all of an invocation's octets are whole, on words, and below each other.
const bool K_EVEN = SHIFTED == 0 && D == 8 * D_OCTETS && WORKGROUP % D_OCTETS == 0;
const bool V_EVEN = SHIFTED == 0 && DV == 8 * V_OCTETS && WORKGROUP % V_OCTETS == 0;

void stage_k(Slice slice, uint j)
{
    const uint units = KEYS * D_OCTETS;
    [[unroll]] for (uint n = 0; n < units; n += WORKGROUP) {
        const uint unit = n + gl_LocalInvocationIndex, key = unit / D_OCTETS, c = unit % D_OCTETS;
        if (n + WORKGROUP <= units || unit < units) {
            uvec4 x;
            if (K_EVEN)
                x = LOAD_QUAD(K, octet_at(slice, k_lane, j + n / D_OCTETS), 0);
            else
                x = load_k(row_at_key(VKA_K, slice, j + key), c, D);
            k_stage[key * K_STRIDE + c] = x;
        }
    }
}

// An invocation takes eight columns of two keys, and stores them as a word of each of eight rows.
void stage_v(Slice slice, uint j)
{
    const uint units = KEYS / 2 * V_OCTETS;
    [[unroll]] for (uint n = 0; n < units; n += WORKGROUP) {
        const uint unit = n + gl_LocalInvocationIndex, pair = unit / V_OCTETS, c = unit % V_OCTETS;
        if (n + WORKGROUP <= units || unit < units) {
            uvec4 a, b;
            if (V_EVEN) {
                a = LOAD_QUAD(V, octet_at(slice, v_lane, j + 2 * (n / V_OCTETS)), 0);
                b = LOAD_QUAD(V, octet_at(slice, v_lane, j + 2 * (n / V_OCTETS) + 1), 0);
            } else {
                a = load_v(row_at_key(VKA_V, slice, j + 2 * pair), c, DV);
                b = load_v(row_at_key(VKA_V, slice, j + 2 * pair + 1), c, DV);
            }
            const uint at = 8 * c / M * V_TILE + 8 * c % M * V_STRIDE + pair / 4, x = pair % 4;
            v_stage[at][x] = pack_low(a.x, b.x);
            v_stage[at + V_STRIDE][x] = pack_high(a.x, b.x);
            v_stage[at + 2 * V_STRIDE][x] = pack_low(a.y, b.y);
            v_stage[at + 3 * V_STRIDE][x] = pack_high(a.y, b.y);
            v_stage[at + 4 * V_STRIDE][x] = pack_low(a.z, b.z);
            v_stage[at + 5 * V_STRIDE][x] = pack_high(a.z, b.z);
            v_stage[at + 6 * V_STRIDE][x] = pack_low(a.w, b.w);
            v_stage[at + 7 * V_STRIDE][x] = pack_high(a.w, b.w);
        }
    }
}

// Staged V without what is not finite.
void clean_v()
{
    barrier();
    uint n = 0;
    [[dont_unroll]] do {
        // Of the last one, which some may share, all make the same.
        const uint at = min(n + gl_LocalInvocationIndex, 4 * V_STAGE - 1);
        v_stage[at / 4][at % 4] = finite_halves(v_stage[at / 4][at % 4]);
        n += WORKGROUP;
    } while (n < 4 * V_STAGE);
}

// The subgroup's rows of Q by way of its rows of scores, as many octets at a time as those hold. A negative scale becomes
// the sign of Q, so that the largest product is the largest score.
void fetch_q(Slice slice)
{
    const uint octets = KEYS / 4, tiles = 8 * octets / K_DIM;
    const uint sign = PARAMS.scale < 0.0 ? 0x80008000u : 0u;
    [[unroll]] for (uint t = 0; t < Q_TILES; t += tiles) {
        const uint c_first = t * K_DIM / 8;
        subgroupBarrier();
        [[dont_unroll]] for (uint n = 0; n < N * octets / SUBGROUP; n++) {
            const uint unit = n * SUBGROUP + gl_SubgroupInvocationID, query = unit / octets, c = unit % octets;
            const uint i = min(first_row + query, uint(mem.len_q) - 1);
            scores[(wave * N + query) * S_STRIDE + c] = load_q(row_at(VKA_Q, slice, i), c_first + c, D) ^ sign;
        }
        subgroupBarrier();
        [[unroll]] for (uint x = 0; x < tiles; x++)
            if (t + x < Q_TILES)
                coopMatLoad(q[t + x], scores, wave * N * S_STRIDE + x * K_DIM / 8, S_STRIDE, COLUMNS);
    }
    subgroupBarrier();
}

void multiply_scores()
{
    [[unroll]] for (uint t = 0; t < KEY_TILES; t++) {
        ACCUMULATOR sum = ACCUMULATOR(0.0);
        [[unroll]] for (uint c = 0; c < Q_TILES; c++) {
            OPERAND_A a;
            coopMatLoad(a, k_stage, t * M * K_STRIDE + c * K_DIM / 8, K_STRIDE, ROWS);
            sum = coopMatMulAdd(a, q[c], sum);
        }
        coopMatStore(sum, scores, wave * N * S_STRIDE + t * M / 4, S_STRIDE, COLUMNS);
    }
}

uint query_of(uint own)
{
    return own_query + own * SUBGROUP;
}

// Where the invocation's keys of a query begin among the scores.
uint scores_at(uint own)
{
    return (wave * N + query_of(own)) * S_STRIDE + part * (OWN_KEYS / 4);
}

// Scale, cap, bias and mask of a step that needs more than the scale, in place; -inf where a key is not seen. Returns a bit
// for each key that is, and the largest score of those. Not unrolled, like weigh_scores(): the code of visible() is long,
// and most steps need none of it.
uint finish_scores(uint own, int j, bool full, out float largest)
{
    const int i = min(int(first_row + query_of(own)), mem.len_q - 1);
    const uint at = scores_at(own);
    const float scale = abs(PARAMS.scale);
    uint seen = 0, n = 0;
    largest = negative_infinity();
    [[dont_unroll]] do {
        const int wanted = j + int(part * OWN_KEYS + n), key = min(wanted, span.end - 1);
        float bias = 0.0;
        bool shown = true;
        if (!full)
            shown = visible(mem, i, key, bias);
        const bool inside = wanted < span.end, counts = shown && inside;
        const float x = mix(negative_infinity(), finish_score(uintBitsToFloat(scores[at + n / 4][n % 4]) * scale, bias),
                            counts);
        scores[at + n / 4][n % 4] = floatBitsToUint(x);
        largest = max(largest, x);
        seen |= uint(counts) << n;
        n++;
    } while (n < OWN_KEYS);
    return seen;
}

// p of such a step, in place. Returns their sum; `test` becomes NaN where a score is NaN or +inf.
float weigh_scores(uint own, uint seen, float base, inout float test)
{
    const uint at = scores_at(own);
    float sum = 0.0;
    uint n = 0;
    [[dont_unroll]] do {
        const bool counts = (seen >> n & 1) != 0;
        const float x = mix(0.0, uintBitsToFloat(scores[at + n / 4][n % 4]) - base, counts);
        const float p = mix(0.0, exp(x), counts);
        test += x;
        sum += p;
        scores[at + n / 4][n % 4] = floatBitsToUint(p);
        n++;
    } while (n < OWN_KEYS);
    return sum;
}

void load_scores(uint own)
{
    const uint at = scores_at(own);
    [[unroll]] for (uint n = 0; n < OWN_KEYS; n += 4) {
        const vec4 x = uintBitsToFloat(scores[at + n / 4]);
        s[own * OWN_KEYS + n] = x.x;
        s[own * OWN_KEYS + n + 1] = x.y;
        s[own * OWN_KEYS + n + 2] = x.z;
        s[own * OWN_KEYS + n + 3] = x.w;
    }
}

void set_factor(uint query, float factor)
{
    factors[wave * N / 4 + query / 4][query % 4] = factor;
}

float joined_max(float x)
{
    [[unroll]] for (uint distance = N; distance < PARTS * N; distance *= 2)
        x = max(x, subgroupShuffleXor(x, distance));
    return x;
}

// Softmax of one query over the scores of a step; leaves p in s.
void update_row(uint own, int j, bool full, bool plain)
{
    const uint first = own * OWN_KEYS;
    const float scale = abs(PARAMS.scale);
    uint seen = 0xFFFFFFFFu;
    float largest, sum = 0.0, test = 0.0;
    if (plain) {
        load_scores(own);
        largest = s[first];
        [[unroll]] for (uint n = 1; n < OWN_KEYS; n++)
            largest = max(largest, s[first + n]);
        largest *= scale;
    } else {
        seen = finish_scores(own, j, full, largest);
    }
    const float last_m = stats[own].m;
    stats[own].m = max(last_m, joined_max(largest));
    const float base = exponent_base(stats[own]);
    const float factor = exp_difference(last_m, base);
    if (plain) {
        const float scale_2 = scale * LOG2_E, base_2 = base * LOG2_E;
        [[unroll]] for (uint n = 0; n < OWN_KEYS; n++) {
            // At most 0, or NaN where the score is NaN or +inf, which max() and exp2() may hide.
            const float x = fma(s[first + n], scale_2, -base_2);
            test += x;
            s[first + n] = exp2(x);
            sum += s[first + n];
        }
    } else {
        sum = weigh_scores(own, seen, base, test);
        load_scores(own);
    }
    const bool poison = is_nan(test), any = seen != 0;
    stats[own].poison = stats[own].poison || poison;
    stats[own].seen = stats[own].seen || any;
    softmax_add(stats[own], factor, sum);
    set_factor(query_of(own), factor); // of all parts the same
}

// Softmax of the subgroup's rows; leaves P and the factors in shared memory.
void update(int j)
{
    const bool full = span_full(wave_span, j, int(KEYS));
    // Products of finite halves are below 2^42: with such a scale no score comes near what f32 holds.
    const bool plain = full && (FEATURES & VKA_SOFTCAP) == 0 && abs(PARAMS.scale) < 1e20;
    // Not a loop: one that holds loops which are not unrolled is not unrolled, and s then indexed.
    update_row(0, j, full, plain);
    if (OWN > 1)
        update_row(1, j, full, plain);
    if (OWN > 2)
        update_row(2, j, full, plain);
    if (OWN > 3)
        update_row(3, j, full, plain);
    subgroupBarrier(); // P lies over the scores of other parts
    [[unroll]] for (uint own = 0; own < OWN; own++) {
        const uint at = (wave * N + query_of(own)) * S_STRIDE + part * (OWN_KEYS / 8), p = own * OWN_KEYS;
        [[unroll]] for (uint n = 0; n < OWN_KEYS; n += 8)
            scores[at + n / 8] = uvec4(pack_p(s[p + n], s[p + n + 1]), pack_p(s[p + n + 2], s[p + n + 3]),
                                       pack_p(s[p + n + 4], s[p + n + 5]), pack_p(s[p + n + 6], s[p + n + 7]));
    }
    subgroupBarrier();
}

void multiply_values()
{
    ACCUMULATOR factor;
    OPERAND_B p[PV_TILES];
    coopMatLoad(factor, factors, wave * N / 4, 0, ROWS);
    [[unroll]] for (uint c = 0; c < PV_TILES; c++)
        coopMatLoad(p[c], scores, wave * N * S_STRIDE + c * K_DIM / 8, S_STRIDE, COLUMNS);
    [[unroll]] for (uint t = 0; t < V_TILES; t++) {
        ACCUMULATOR sum = ACCUMULATOR(0.0);
        [[unroll]] for (uint c = 0; c < PV_TILES; c++) {
            OPERAND_A a;
            coopMatLoad(a, v_stage, t * V_TILE + c * K_DIM / 8, V_STRIDE, ROWS);
            sum = coopMatMulAdd(a, p[c], sum);
        }
        acc[t] = acc[t] * factor + sum;
    }
}

// Whether an accumulator of the work group holds what is not finite: all agree, since staging has barriers.
bool is_spoilt()
{
    uint largest = 0;
    [[unroll]] for (uint t = 0; t < V_TILES; t++)
        for (uint n = 0; n < acc[t].length(); n++)
            largest = max(largest, floatBitsToUint(acc[t][n]) & INFINITY_BITS);
    if (largest == INFINITY_BITS)
        spoilt = true;
    barrier();
    return spoilt;
}

void clear()
{
    [[unroll]] for (uint t = 0; t < V_TILES; t++)
        acc[t] = ACCUMULATOR(0.0);
    [[unroll]] for (uint own = 0; own < OWN; own++)
        stats[own] = softmax_empty();
}

// The keys of the work group's span.
void attend(Slice k_slice, Slice v_slice)
{
    // Bottom-tested: llvmpipe runs the body of a top-tested loop once more with no invocation active.
    const uint lane = gl_LocalInvocationIndex;
    k_lane = lane_at(VKA_K, lane / D_OCTETS, lane % D_OCTETS);
    v_lane = lane_at(VKA_V, 2 * (lane / V_OCTETS), lane % V_OCTETS);
    int j = span_next(span, span.begin);
    do {
        barrier();
        stage_k(k_slice, uint(j));
        stage_v(v_slice, uint(j));
        if (careful)
            clean_v();
        barrier();
        const bool sees = j < wave_span.end && j + int(KEYS) > wave_span.begin;
        if (SKIP == 0 || sees) {
            multiply_scores();
            subgroupBarrier();
            update(j);
            multiply_values();
        }
        j = span_next(span, j + int(KEYS));
    } while (j < span.end);
}

// The parts' sums are one row's. Each part was rescaled alike.
void join_parts()
{
    [[unroll]] for (uint own = 0; own < OWN; own++) {
        uint flags = uint(stats[own].seen) | uint(stats[own].poison) << 1;
        float l = stats[own].l - stats[own].rest;
        [[unroll]] for (uint distance = N; distance < PARTS * N; distance *= 2) {
            l += subgroupShuffleXor(l, distance);
            flags |= subgroupShuffleXor(flags, distance);
        }
        stats[own].l = l;
        stats[own].seen = (flags & 1) != 0;
        stats[own].poison = (flags & 2) != 0;
    }
}

// Statistics to what the rows of O are multiplied by, in `factors`; writes LSE. A row of NaN is told by its factor.
void finish_rows(Item item)
{
    [[unroll]] for (uint own = 0; own < OWN; own++) {
        const uint i = first_row + query_of(own);
        if (int(i) >= mem.len_q)
            stats[own] = softmax_empty();
        float scale = 1.0;
        if ((PARAMS.features & VKA_SINKS_ON) != 0)
            scale = softmax_sink(stats[own], uintBitsToFloat(LOAD_WORD(SINKS, tensor_slice(VKA_SINKS, 0, item.h, 5), 0)));
        scale *= softmax_inverse(stats[own]);
        scale = stats[own].seen ? scale : 0.0;
        set_factor(query_of(own), softmax_is_nan(stats[own]) ? uintBitsToFloat(NAN_BITS) : scale);
        if (part == 0 && i < PARAMS.len_q && (PARAMS.features & VKA_LSE_ON) != 0)
            STORE_WORD(LSE, tensor_slice(VKA_LSE, item.b, item.h, 5), i * PARAMS.tensors[VKA_LSE].row_stride,
                       floatBitsToUint(softmax_lse(stats[own])));
    }
}

// Four columns of a row of O from column e, a multiple of 4, on. A word that a neighbour may share is changed by halves.
void store_o(Slice row, uint e, vec4 x)
{
    if (O_TYPE == VKA_TYPE_F32) {
        if (e + 4 <= DV) {
            STORE_QUAD(O, row, e / 4, floatBitsToUint(x));
        } else {
            STORE_WORD(O, row, e, floatBitsToUint(x.x));
            if (e + 1 < DV)
                STORE_WORD(O, row, e + 1, floatBitsToUint(x.y));
            if (e + 2 < DV)
                STORE_WORD(O, row, e + 2, floatBitsToUint(x.z));
        }
        return;
    }
    const uvec4 bits = uvec4(encode(O_TYPE, x.x), encode(O_TYPE, x.y), encode(O_TYPE, x.z), encode(O_TYPE, x.w));
    if (row.skew == 0 && e + 4 <= DV) {
        STORE_WORD(O, row, e / 2, bits.x | bits.y << 16);
        STORE_WORD(O, row, e / 2 + 1, bits.z | bits.w << 16);
    } else {
        STORE_HALF(O, row, e, bits.x)
        if (e + 1 < DV)
            STORE_HALF(O, row, e + 1, bits.y)
        if (e + 2 < DV)
            STORE_HALF(O, row, e + 2, bits.z)
        if (e + 3 < DV)
            STORE_HALF(O, row, e + 3, bits.w)
    }
}

// Accumulators to rows of O by way of the rows of scores, as many columns at a time as those hold.
void write_rows(Item item)
{
    const uint log2_bits = type_log2(O_TYPE), tiles = KEY_TILES, chunks = tiles * M / 4;
    const Slice o_slice = tensor_slice(VKA_O, item.b, item.h, log2_bits);
    [[unroll]] for (uint t = 0; t < V_TILES; t += tiles) {
        subgroupBarrier();
        [[unroll]] for (uint x = 0; x < tiles; x++)
            if (t + x < V_TILES)
                coopMatStore(acc[t + x], scores, wave * N * S_STRIDE + x * M / 4, S_STRIDE, COLUMNS);
        subgroupBarrier();
        [[dont_unroll]] for (uint n = 0; n < N * chunks / SUBGROUP; n++) {
            const uint unit = n * SUBGROUP + gl_SubgroupInvocationID, query = unit / chunks, chunk = unit % chunks;
            const uint i = first_row + query, e = t * M + 4 * chunk;
            const float factor = factors[wave * N / 4 + query / 4][query % 4];
            if (i < PARAMS.len_q && e < DV) {
                vec4 x = uintBitsToFloat(scores[(wave * N + query) * S_STRIDE + chunk]);
                // An empty row may have met what is not finite, and so may a row that is NaN.
                x = mix(x * factor, vec4(0.0), bvec4(factor == 0.0));
                x = mix(x, vec4(factor), bvec4(is_nan(factor)));
                store_o(slice_at(o_slice, i * PARAMS.tensors[VKA_O].row_stride, log2_bits), e, x);
            }
        }
    }
}

// What V that is not finite makes of O: infinities and NaN that a row sees, however small their weights. The invocation that
// wrote an element writes it again. Loops and not unrolled: this is rare, and long.
void write_infinities(Item item, Slice v_slice)
{
    const uint log2_bits = type_log2(O_TYPE), columns = KEY_TILES * M, chunks = columns / 4;
    const Slice o_slice = tensor_slice(VKA_O, item.b, item.h, log2_bits);
    [[dont_unroll]] for (uint first = 0; first < DV; first += columns)
        [[dont_unroll]] for (uint n = 0; n < N * columns / SUBGROUP; n++) {
            const uint unit = n / 4 * SUBGROUP + gl_SubgroupInvocationID, query = unit / chunks;
            const uint i = first_row + query, e = first + unit % chunks * 4 + n % 4;
            uint met = 0; // 1: inf, 2: -inf, 4: NaN
            if (int(i) < mem.len_q && e < DV && !is_nan(factors[wave * N / 4 + query / 4][query % 4])) {
                int j = span_next(span, span.begin);
                do {
                    float bias;
                    if (visible(mem, int(i), j, bias)) {
                        const float v = LOAD_ELEMENT(V, row_at(VKA_V, v_slice, uint(j)), e, TYPE);
                        met |= is_nan(v) ? 4 : is_negative_infinity(v) ? 2 : is_poison(v) ? 1 : 0;
                    }
                    j = span_next(span, j + 1);
                } while (j < span.end);
            }
            if (met != 0) {
                const uint sign = met == 2 ? 0x80000000u : 0;
                const float x = uintBitsToFloat(met > 2 ? NAN_BITS : INFINITY_BITS | sign);
                STORE_ELEMENT(O, o_slice, i * PARAMS.tensors[VKA_O].row_stride + e, O_TYPE, x)
            }
        }
}

void main()
{
    Item item;
    if (!work_item(PARAMS.heads, item))
        return;
    mem = member(item.b, item.h);
    wave = gl_SubgroupID;
    part = gl_SubgroupInvocationID / N;
    own_query = gl_SubgroupInvocationID % N;
    const uint block_first = item.block * BLOCK_ROWS;
    first_row = block_first + wave * N;
    span = key_span(mem, int(block_first), int(block_first + BLOCK_ROWS) - 1);
    wave_span = key_span(mem, int(first_row), int(first_row + N) - 1);
    const Slice q_slice = tensor_slice(VKA_Q, item.b, item.h, 4);
    const Slice k_slice = tensor_slice(VKA_K, item.b, kv_head(item), 4);
    const Slice v_slice = tensor_slice(VKA_V, item.b, kv_head(item), 4);

    careful = false;
    const bool any = span_next(span, span.begin) < span.end;
    if (gl_LocalInvocationIndex == 0)
        spoilt = false;
    clear();
    if (any) {
        fetch_q(q_slice);
        bool again;
        do {
            clear();
            attend(k_slice, v_slice);
            again = false;
            if (!careful)
                again = is_spoilt();
            careful = careful || again;
        } while (again);
    }
    join_parts();
    finish_rows(item);
    write_rows(item);
    if (careful)
        write_infinities(item, v_slice);
}
