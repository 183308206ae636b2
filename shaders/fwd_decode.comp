#version 450
// fwd_decode: few queries against many keys; one part of the keys and some rows of one kv head per work group.
//
//   rows: (query, head of the group) pairs, packed: K and V are read once for all of them
//   for each step of KEYS keys of the part that some row can see:
//       s     = q K^T                                lanes are keys
//       s     = softcap, bias, mask                  only where span_full() does not rule it out
//       m'    = max(m, max s)    c = exp(m - m')
//       p     = exp(s - m')      l = c l + p         a lane's own sum
//       acc   = c acc + p V                          lanes are words of a row of V
//   PARTS = acc,  STATS = m, l and what was met      fwd_combine joins the parts
//   if an unseen V row that is not finite spoilt acc (0 NaN = NaN): each row once more, with what it does not see set to 0
//
// A work group is one subgroup of SUBGROUP lanes: no barrier, no shared memory; lanes exchange by shuffles. With UNIFORM a
// vector of words is put together from loads at addresses that are the same for all lanes, which llvmpipe makes masked
// broadcasts of: 4.5 times faster than gathers. Elsewhere each lane loads its own.
//
// The keys that the rows of the block see are cut into parts by their number, in whole steps; so the cut follows from the
// member's own lengths, whatever else is in the batch. Parts without keys are written as such.
//
// With SPREAD, for GPUs, lanes are not keys and then words: a row of K, and of V, lies over SPREAD lanes, four words each, so
// that LANES / SPREAD keys come with one load of 128 bits and p is where V is. The lanes of a key add up their products by
// shuffles; acc is added up over lanes at the end. The steps are the same.
//
// After Dao, Haziza, Massa, Sizov 2023 (Flash-Decoding); rows packed over the heads of a group as in FlashAttention-2.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "lib/chunk.glsl"
#include "lib/item.glsl"
#include "lib/softmax.glsl"

layout(local_size_x_id = VKA_ID_WORKGROUP) in;
layout(constant_id = VKA_ID_SUBGROUP) const uint LANES = 8; // and the work group's size; a power of two from 4 on
layout(constant_id = VKA_ID_DIM_QK) const uint D = 64;
layout(constant_id = VKA_ID_DIM_V) const uint DV = 64;
layout(constant_id = VKA_ID_Q_TYPE) const uint Q_TYPE = VKA_TYPE_F32;
layout(constant_id = VKA_ID_KV_TYPE) const uint KV_TYPE = VKA_TYPE_F32;
layout(constant_id = VKA_ID_ROWS) const uint ROWS = 1;
layout(constant_id = VKA_ID_KEYS) const uint KEYS = 8; // a multiple of LANES, or of LANES / SPREAD
layout(constant_id = VKA_ID_SPREAD) const uint SPREAD = 0; // lanes of a key, a power of two; 0: lanes are keys, then words
layout(constant_id = VKA_ID_UNIFORM) const uint UNIFORM = 0; // without SPREAD
layout(constant_id = VKA_ID_SHIFTED) const uint SHIFTED = 0; // rows of K and V may start in mid-word
layout(constant_id = VKA_ID_ONE_QUERY) const uint ONE_QUERY = 0; // nonzero: len_q is 1 at most
layout(constant_id = VKA_ID_FOLD) const uint FOLD = 0; // steps after which acc is folded into PARTS; 0: never

const uint KEY_LANES = SPREAD != 0 ? SPREAD : 1;
const uint ABREAST = LANES / KEY_LANES;                  // keys whose scores lanes hold at once
const uint VECTORS = KEYS / ABREAST;                     // of keys in a step
const uint PACKED = KV_TYPE == VKA_TYPE_F32 ? 1 : 2;     // elements of a word
const uint K_WORDS = (D + PACKED - 1) / PACKED, V_WORDS = (DV + PACKED - 1) / PACKED;
const uint OWN_WORDS = SPREAD != 0 ? 4 : 1, OWN = OWN_WORDS * PACKED; // of a chunk in each lane: words, elements
const uint ROW_LANES = SPREAD != 0 ? SPREAD : LANES;     // lanes that a chunk of a row lies in
const uint CHUNK_WORDS = ROW_LANES * OWN_WORDS;
const uint K_CHUNKS = (K_WORDS + CHUNK_WORDS - 1) / CHUNK_WORDS, V_CHUNKS = (V_WORDS + CHUNK_WORDS - 1) / CHUNK_WORDS;

INPUT(Q, VKA_Q)
INPUT(K, VKA_K)
INPUT(V, VKA_V)
OUTPUT(PARTS, VKA_PARTS)
OUTPUT(STATS, VKA_STATS)

float q[ROWS * K_CHUNKS * OWN];      // a lane has the elements of its words
float acc[ROWS * V_CHUNKS * OWN];    // likewise; with SPREAD of its keys only
float s[ROWS * VECTORS];             // scores of a lane's keys, then p
bool kept[VECTORS];                  // whether V of a lane's keys is taken
float p[ROWS * KEYS];                // of each key, the same in all lanes
bool taken[KEYS];                    // kept, likewise
// Of a step. Global, since arrays sized by expressions of constants are not equal to themselves in a call (glslang 12).
Slice k_keys[LANES], own_key, v_keys[KEYS];
float factor[ROWS];                  // of acc in this step
float since[ROWS];                   // product of the factors since acc was last folded
Softmax stats[ROWS];                 // m is the row's; the rest a lane's own
Member mem[ROWS];                    // they differ by head
int row[ROWS];
bool folded;
uint lane;
uint rows_here;                      // rows past the last one are that one again, and not stored
Span span; // of this part

// Whether with SPREAD every lane of every chunk has four words of a row, which start on a word. Then a lane's slice begins at
// its own: one address for each row, and constant offsets.
#define WHOLE(count, dim) (count % CHUNK_WORDS == 0 && dim % PACKED == 0 && (SHIFTED == 0 || PACKED == 1))

Slice slice_of_lane(Slice slice, bool whole)
{
    return whole ? slice_at(slice, lane % ROW_LANES * 4, 5) : slice;
}

// Word w of a row of n elements; 0 past its end, and in the half that is a neighbour's.
#define DEFINE_WORD(NAME, TENSOR, COUNT, DIM) \
    uint NAME(Slice row, uint w) \
    { \
        uint x = LOAD_WORD(TENSOR, row, w); \
        if (SHIFTED != 0 && PACKED == 2) { \
            const uint y = LOAD_WORD(TENSOR, row, min(w + 1, (DIM - 1 + row.skew) >> 1)); \
            x = mix(x, (x >> 16) | (y << 16), row.skew != 0); \
        } \
        return DIM % PACKED != 0 ? mix(x, x & 0xFFFFu, w == COUNT - 1) : x; \
    } \
    uvec4 NAME##s(Slice row, uint n) \
    { \
        if (4 * n + 4 <= COUNT && (SHIFTED == 0 || PACKED == 1) && (DIM % PACKED == 0 || 4 * n + 4 < COUNT)) \
            return LOAD_QUAD(TENSOR, row, n); \
        uvec4 x = uvec4(0); \
        x.x = NAME(row, min(4 * n, COUNT - 1)); \
        if (4 * n + 1 < COUNT) \
            x.y = NAME(row, 4 * n + 1); \
        if (4 * n + 2 < COUNT) \
            x.z = NAME(row, 4 * n + 2); \
        if (4 * n + 3 < COUNT) \
            x.w = NAME(row, 4 * n + 3); \
        return x; \
    } \
    uvec4 NAME##s_of_lane(Slice row, uint c) \
    { \
        if (WHOLE(COUNT, DIM)) \
            return LOAD_QUAD(TENSOR, row, c * ROW_LANES); \
        const uint w = 4 * (c * ROW_LANES + lane % ROW_LANES); \
        const uvec4 at = uvec4(w, w + 1, w + 2, w + 3), held = min(at, uvec4(COUNT - 1)); \
        const uvec4 x = uvec4(NAME(row, held.x), NAME(row, held.y), NAME(row, held.z), NAME(row, held.w)); \
        return mix(uvec4(0), x, lessThan(at, uvec4(COUNT))); \
    }

DEFINE_WORD(k_word, K, K_WORDS, D)
DEFINE_WORD(v_word, V, V_WORDS, DV)

// Keys past the last one of the part are read as that one: an address beyond it may be anybody's.
Slice key_row(Slice slice, uint tensor, int key)
{
    const uint held = uint(min(key, span.end - 1)), stride = PARAMS.tensors[tensor].row_stride;
    if (SHIFTED == 0 || PACKED == 1)
        return slice_at(slice, held * (stride / PACKED), 5);
    return slice_at(slice, held * stride, type_log2(KV_TYPE));
}

// Words 4n .. 4n + 3 of the keys from j on, a lane's key in each lane.
uvec4 words_of_keys(uint n)
{
    if (UNIFORM == 0)
        return k_words(own_key, n);
    uvec4 x = k_words(k_keys[0], n);
    [[unroll]] for (uint y = 1; y < LANES; y++)
        x = mix(x, k_words(k_keys[y], n), bvec4(lane == y));
    return x;
}

// Word c * LANES + lane of a row of V.
uint word_of_row(Slice key, uint c)
{
    if (UNIFORM == 0) {
        const uint w = c * LANES + lane, x = v_word(key, min(w, V_WORDS - 1));
        return (c + 1) * LANES <= V_WORDS ? x : mix(0u, x, w < V_WORDS);
    }
    uint x = 0;
    [[unroll]] for (uint a = 0; a < LANES / 4; a++)
        if (c * LANES + 4 * a < V_WORDS) {
            const uvec4 y = v_words(key, c * LANES / 4 + a);
            x = mix(x, y.x, lane == 4 * a);
            x = mix(x, y.y, lane == 4 * a + 1);
            x = mix(x, y.z, lane == 4 * a + 2);
            x = mix(x, y.w, lane == 4 * a + 3);
        }
    return x;
}

vec2 decode_word(uint x)
{
    if (PACKED == 1)
        return vec2(uintBitsToFloat(x));
    return decode_words(KV_TYPE, x, 0).xy;
}

// Straight code over all words of a row, in blocks with fences between. A driver's compiler takes time that grows with the
// square of the loads between two fences: 2.3 s at 256 words, and 0.8 s with fences (llvmpipe).
const uint BLOCK_WORDS = 64;
#define BLOCKS(words, call) \
    [[unroll]] for (uint block = 0; block < (words + BLOCK_WORDS - 1) / BLOCK_WORDS; block++) { \
        if (block > 0) \
            subgroupMemoryBarrierBuffer(); \
        call; \
    }

// s += q x for elements of word w, which lane w % LANES of q holds.
void multiply_word(uint v, uint w, uint x)
{
    const vec2 k = decode_word(x);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint at = (r * K_CHUNKS + w / LANES) * OWN;
        s[r * VECTORS + v] = fma(subgroupShuffle(q[at], w % LANES), k.x, s[r * VECTORS + v]);
        if (PACKED == 2)
            s[r * VECTORS + v] = fma(subgroupShuffle(q[at + PACKED - 1], w % LANES), k.y, s[r * VECTORS + v]);
    }
}

void scores_block(uint v, uint block)
{
    [[unroll]] for (uint m = 0; m < BLOCK_WORDS / 4; m++) {
        const uint n = block * BLOCK_WORDS / 4 + m;
        if (4 * n < K_WORDS) {
            const uvec4 x = words_of_keys(n);
            multiply_word(v, 4 * n, x.x);
            if (4 * n + 1 < K_WORDS)
                multiply_word(v, 4 * n + 1, x.y);
            if (4 * n + 2 < K_WORDS)
                multiply_word(v, 4 * n + 2, x.z);
            if (4 * n + 3 < K_WORDS)
                multiply_word(v, 4 * n + 3, x.w);
        }
    }
}

// The words of a lane, elements in pairs of vec4; the second is 0 where a word is one element.
void decode_quad(uvec4 x, out vec4 a, out vec4 b)
{
    a = PACKED == 1 ? uintBitsToFloat(x) : decode_words(KV_TYPE, x.x, x.y);
    b = PACKED == 1 ? vec4(0.0) : decode_words(KV_TYPE, x.z, x.w);
}

// Scores with a key's row spread over lanes: each multiplies its words, and all of them get the sum.
void scores_spread(Slice k_slice, int j)
{
    [[unroll]] for (uint v = 0; v < VECTORS; v++) {
        own_key = key_row(k_slice, VKA_K, j + int(v * ABREAST + lane / KEY_LANES));
        [[unroll]] for (uint c = 0; c < K_CHUNKS; c++) {
            vec4 a, b;
            decode_quad(k_words_of_lane(own_key, c), a, b);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                const uint at = (r * K_CHUNKS + c) * OWN;
                float sum = c == 0 ? 0.0 : s[r * VECTORS + v];
                sum = fma(q[at + 3], a.w, fma(q[at + 2], a.z, fma(q[at + 1], a.y, fma(q[at], a.x, sum))));
                if (PACKED == 2)
                    sum = fma(q[at + OWN - 1], b.w,
                              fma(q[at + OWN - 2], b.z, fma(q[at + OWN - 3], b.y, fma(q[at + OWN - 4], b.x, sum))));
                s[r * VECTORS + v] = sum;
            }
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            [[unroll]] for (uint n = 0; n < 6; n++)
                if ((1u << n) < KEY_LANES)
                    s[r * VECTORS + v] += subgroupShuffleXor(s[r * VECTORS + v], 1u << n);
    }
}

void scores(Slice k_slice, int j)
{
    [[unroll]] for (uint v = 0; v < VECTORS; v++) {
        const int first = j + int(v * LANES);
        [[unroll]] for (uint y = 0; y < LANES; y++)
            if (UNIFORM != 0)
                k_keys[y] = key_row(k_slice, VKA_K, first + int(y));
        own_key = key_row(k_slice, VKA_K, first + int(lane));
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            s[r * VECTORS + v] = 0.0;
        BLOCKS(K_WORDS, scores_block(v, block))
    }
}

// Over keys: the lanes of one key hold the same.
float largest_of_lanes(float x)
{
    [[unroll]] for (uint n = 0; n < 6; n++)
        if ((1u << n) >= KEY_LANES && (1u << n) < LANES)
            x = max(x, subgroupShuffleXor(x, 1u << n));
    return x;
}

float sum_of_lanes(float x)
{
    [[unroll]] for (uint n = 0; n < 6; n++)
        if ((1u << n) >= KEY_LANES && (1u << n) < LANES)
            x += subgroupShuffleXor(x, 1u << n);
    return x;
}

uint bits_of_lanes(uint x)
{
    [[unroll]] for (uint n = 0; n < 6; n++)
        if ((1u << n) < LANES)
            x |= subgroupShuffleXor(x, 1u << n);
    return x;
}

// Scores of row r, of which some may not be seen: -inf there. `keep`: V of keys that this row does not see is left out,
// for all rows.
void mask_row(uint r, int j, bool keep)
{
    [[unroll]] for (uint v = 0; v < VECTORS; v++) {
        float bias = 0.0;
        const int key = j + int(v * ABREAST + lane / KEY_LANES);
        const bool inside = key < span.end, shown = visible(mem[r], row[r], min(key, span.end - 1), bias);
        const bool seen = shown && inside, dropped = keep && !seen;
        stats[r].seen = stats[r].seen || seen;
        kept[v] = kept[v] && !dropped;
        s[r * VECTORS + v] = mix(negative_infinity(), finish_score(s[r * VECTORS + v], bias), seen);
    }
}

// Softmax of row r over the scores of the step; leaves p in s. What is not seen is -inf, and p is 0 as that of a score of
// -inf is.
void update(uint r)
{
    float largest = s[r * VECTORS];
    [[unroll]] for (uint v = 1; v < VECTORS; v++)
        largest = max(largest, s[r * VECTORS + v]);
    const float last_m = stats[r].m;
    stats[r].m = max(last_m, largest_of_lanes(largest));
    const float base = exponent_base(stats[r]);
    factor[r] = exp_difference(last_m, base);
    float sum = 0.0, test = 0.0;
    [[unroll]] for (uint v = 0; v < VECTORS; v++) {
        // At most 0, or NaN where the score is NaN or +inf, which max() and exp() may hide.
        const float x = s[r * VECTORS + v] - base;
        const float weight = exp(x);
        test += x;
        s[r * VECTORS + v] = weight;
        sum += weight;
    }
    const bool poison = is_nan(test);
    stats[r].poison = stats[r].poison || poison;
    softmax_add(stats[r], factor[r], sum);
}

void update_rows()
{
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        update(r);
}

// The two ways to go on from scores. On a CPU driver each has the softmax to itself: values that leave a branch cost more
// (llvmpipe: 10% of the whole). Elsewhere they share it.
void see_all()
{
    [[unroll]] for (uint n = 0; n < ROWS * VECTORS; n++)
        s[n] = finish_score(s[n], 0.0);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        stats[r].seen = true;
    if (UNIFORM != 0)
        update_rows();
}

void mask_rows(int j, int only)
{
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        mask_row(r, j, only == int(r));
    if (UNIFORM != 0)
        update_rows();
}

// Chunk c of acc. The keys of a step are added up first: a long sum loses bits with every addition to it.
void add_chunk(uint c)
{
    vec2 sum[ROWS];
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        const vec2 x = decode_word(mix(0u, word_of_row(v_keys[k], c), taken[k]));
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            sum[r] = k == 0 ? p[r * KEYS] * x : fma(vec2(p[r * KEYS + k]), x, sum[r]);
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint at = (r * V_CHUNKS + c) * OWN;
        acc[at] = fma(acc[at], factor[r], sum[r].x);
        if (PACKED == 2)
            acc[at + PACKED - 1] = fma(acc[at + PACKED - 1], factor[r], sum[r].y);
    }
}

void values_block(uint block)
{
    [[unroll]] for (uint m = 0; m < BLOCK_WORDS / LANES; m++) {
        const uint c = block * BLOCK_WORDS / LANES + m;
        if (c < V_CHUNKS)
            add_chunk(c);
    }
}

// acc += p V with a row of V spread as one of K is: each lane adds its words of its keys.
void add_values_spread(Slice v_slice, int j)
{
    [[unroll]] for (uint n = 0; n < ROWS * V_CHUNKS * OWN; n++)
        acc[n] *= factor[n / (V_CHUNKS * OWN)];
    [[unroll]] for (uint v = 0; v < VECTORS; v++) {
        own_key = key_row(v_slice, VKA_V, j + int(v * ABREAST + lane / KEY_LANES));
        [[unroll]] for (uint c = 0; c < V_CHUNKS; c++) {
            vec4 a, b;
            decode_quad(mix(uvec4(0), v_words_of_lane(own_key, c), bvec4(kept[v])), a, b);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                const uint at = (r * V_CHUNKS + c) * OWN;
                const float x = s[r * VECTORS + v];
                acc[at] = fma(x, a.x, acc[at]);
                acc[at + 1] = fma(x, a.y, acc[at + 1]);
                acc[at + 2] = fma(x, a.z, acc[at + 2]);
                acc[at + 3] = fma(x, a.w, acc[at + 3]);
                if (PACKED == 2) {
                    acc[at + OWN - 4] = fma(x, b.x, acc[at + OWN - 4]);
                    acc[at + OWN - 3] = fma(x, b.y, acc[at + OWN - 3]);
                    acc[at + OWN - 2] = fma(x, b.z, acc[at + OWN - 2]);
                    acc[at + OWN - 1] = fma(x, b.w, acc[at + OWN - 1]);
                }
            }
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        since[r] *= factor[r];
}

void add_values(Slice v_slice, int j)
{
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        v_keys[k] = key_row(v_slice, VKA_V, j + int(k));
        taken[k] = subgroupShuffle(uint(kept[k / LANES]), k % LANES) != 0;
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            p[r * KEYS + k] = subgroupShuffle(s[r * VECTORS + k / LANES], k % LANES);
    }
    BLOCKS(V_WORDS, values_block(block))
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        since[r] *= factor[r];
}

void clear_acc()
{
    [[unroll]] for (uint n = 0; n < ROWS * V_CHUNKS * OWN; n++)
        acc[n] = 0.0;
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        since[r] = 1.0;
}

// The row of PARTS or STATS that belongs to packed row r of this work group.
uint part_row(uint r, uint part)
{
    return uint(row[r]) * PARAMS.parts + part;
}

// PARTS = acc, and what was folded before.
void store_sums(Slice sums, uint r)
{
    if (r >= rows_here)
        return;
    [[unroll]] for (uint c = 0; c < V_CHUNKS; c++)
        [[unroll]] for (uint n = 0; n < OWN; n++) {
            const uint e = (c * ROW_LANES + lane % ROW_LANES) * OWN + n;
            float x = acc[(r * V_CHUNKS + c) * OWN + n];
            if (SPREAD != 0)
                x = sum_of_lanes(x);
            if (e < DV && lane < ROW_LANES) {
                if (FOLD != 0 && folded)
                    x = fma(uintBitsToFloat(LOAD_OUTPUT_WORD(PARTS, sums, e)), since[r], x);
                STORE_WORD(PARTS, sums, e, floatBitsToUint(x));
            }
        }
}

bool is_spoilt()
{
    uint largest = 0;
    [[unroll]] for (uint n = 0; n < ROWS * V_CHUNKS * OWN; n++)
        largest = max(largest, floatBitsToUint(acc[n]) & INFINITY_BITS);
    return bits_of_lanes(largest == INFINITY_BITS ? 1u : 0u) != 0;
}

// The keys of part p of `parts`: those that the block sees, without the hole, in equal numbers of whole steps.
Span part_of(Span s, uint part, uint parts)
{
    const int before = s.hole_begin - s.begin, count = before + s.end - s.hole_end;
    const int steps = (count + int(KEYS) - 1) / int(KEYS), size = (steps + int(parts) - 1) / int(parts) * int(KEYS);
    const int first = min(int(part) * size, count), last = min(first + size, count) - 1;
    const int begin = s.begin, skipped = s.hole_end - s.hole_begin;
    s.begin = begin + first + (first >= before ? skipped : 0);
    s.end = first > last ? s.begin : begin + last + (last >= before ? skipped : 0) + 1;
    s.full_prefix = min(s.full_prefix, s.end);
    s.full_end = min(s.full_end, s.end);
    return s;
}

// All steps of the part. `only`: the row that alone is right afterwards, since V that it does not see is left out; -1: all
// are. False when acc holds what is not finite, which may be V that a row does not see.
bool run_part(Slice k_slice, Slice v_slice, Slice sums[ROWS], int only)
{
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        stats[r] = softmax_empty();
    clear_acc();
    folded = false;
    int j = span.begin;
    bool all_full = true, spoilt = false;
    uint steps = 0;
    do {
        const bool full = span_full(span, j, int(KEYS));
        all_full = all_full && full;
        if (SPREAD != 0)
            scores_spread(k_slice, j);
        else
            scores(k_slice, j);
        [[unroll]] for (uint v = 0; v < VECTORS; v++)
            kept[v] = true;
        if (full)
            see_all();
        else
            mask_rows(j, only);
        if (UNIFORM == 0)
            update_rows();
        if (SPREAD != 0)
            add_values_spread(v_slice, j);
        else
            add_values(v_slice, j);
        if (FOLD != 0 && ++steps == FOLD) {
            spoilt = spoilt || is_spoilt();
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                store_sums(sums[r], r);
            clear_acc();
            folded = true;
            steps = 0;
        }
        j = span_next(span, j + int(KEYS));
    } while (j < span.end);
    if (!all_full)
        spoilt = is_spoilt() || spoilt;
    return all_full || !spoilt;
}

void main()
{
    Item item;
    if (!work_item(PARAMS.heads / PARAMS.group, item))
        return;
    lane = gl_SubgroupInvocationID;
    const uint part = item.block % PARAMS.parts, first = item.block / PARAMS.parts * ROWS;
    const uint rows = PARAMS.len_q * PARAMS.group, last = min(first + ROWS, rows) - 1;
    rows_here = last - first + 1;
    const Slice k_slice = tensor_slice(VKA_K, item.b, item.h, type_log2(KV_TYPE));
    const Slice v_slice = tensor_slice(VKA_V, item.b, item.h, type_log2(KV_TYPE));

    const Slice k_lane = slice_of_lane(k_slice, SPREAD != 0 && WHOLE(K_WORDS, D));
    const Slice v_lane = slice_of_lane(v_slice, SPREAD != 0 && WHOLE(V_WORDS, DV));

    uint head[ROWS];
    Slice sums[ROWS], results[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint packed = min(first + r, last);
        row[r] = ONE_QUERY != 0 ? 0 : int(packed / PARAMS.group);
        head[r] = item.h * PARAMS.group + packed % PARAMS.group;
        mem[r] = member(item.b, head[r]);
        // The same for all heads, which a driver need not see.
        mem[r].len_q = mem[0].len_q;
        mem[r].len_kv = mem[0].len_kv;
        mem[r].shift = mem[0].shift;
        mem[r].prefix = mem[0].prefix;
        sums[r] = slice_at(tensor_slice(VKA_PARTS, item.b, head[r], 5),
                           part_row(r, part) * PARAMS.tensors[VKA_PARTS].row_stride, 5);
        results[r] = slice_at(tensor_slice(VKA_STATS, item.b, head[r], 5), part_row(r, part) * 4, 5);
        stats[r] = softmax_empty();
    }
    span = part_of(key_span(mem[0], int(first / PARAMS.group), int(last / PARAMS.group)), part, PARAMS.parts);
    clear_acc();
    folded = false;

    const bool some = span.begin < span.end;
    if (some)
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            const Slice q_row = slice_at(tensor_slice(VKA_Q, item.b, head[r], type_log2(Q_TYPE)),
                                         uint(min(row[r], mem[r].len_q - 1)) * PARAMS.tensors[VKA_Q].row_stride,
                                         type_log2(Q_TYPE));
            [[unroll]] for (uint c = 0; c < K_CHUNKS; c++)
                [[unroll]] for (uint n = 0; n < OWN; n++) {
                    const uint e = (c * ROW_LANES + lane % ROW_LANES) * OWN + n;
                    const float x = LOAD_ELEMENT(Q, q_row, min(e, D - 1), Q_TYPE);
                    q[(r * K_CHUNKS + c) * OWN + n] = e < D ? PARAMS.scale * x : 0.0;
                }
        }
    int only = -1;
    do {
        bool right = true;
        if (some)
            right = run_part(k_lane, v_lane, sums, only);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            const bool chosen = only == int(r), whole = right && only < 0;
            if (chosen || whole) {
                if (row[r] >= mem[r].len_q)
                    stats[r] = softmax_empty();
                const uint seen = stats[r].seen ? VKA_PART_SEEN : 0, poison = stats[r].poison ? VKA_PART_POISON : 0;
                const uint met = bits_of_lanes(seen | poison);
                const float l = sum_of_lanes(stats[r].l - stats[r].rest);
                store_sums(sums[r], r);
                if (lane == 0 && r < rows_here)
                    STORE_QUAD(STATS, results[r], 0,
                               uvec4(floatBitsToUint(stats[r].m), floatBitsToUint(l), met, 0));
            }
        }
        only = right && only < 0 ? int(ROWS) : only + 1;
    } while (only < int(ROWS));
}
