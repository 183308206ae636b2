// Who sees whom: the one visibility model (SEMANTICS "Visibility"), its loop limits, and what is added to a score.
//
// A kernel walks the keys of key_span() and asks visible() for each pair unless span_full() says that every row of its
// block sees every key of the step.
#ifndef MASK_GLSL
#define MASK_GLSL

#include "lib/dtype.glsl"

INPUT(MASK, VKA_MASK)
INPUT(BIAS, VKA_BIAS)
INPUT(ALIBI, VKA_ALIBI)
INPUT(SINKS, VKA_SINKS)
INPUT(KV_LENGTHS, VKA_KV_LENGTHS)
INPUT(Q_LENGTHS, VKA_Q_LENGTHS)
INPUT(PREFIX, VKA_PREFIX)
INPUT(Q_SEGMENTS, VKA_Q_SEGMENTS)
INPUT(KV_SEGMENTS, VKA_KV_SEGMENTS)

// Specialised, or read from params where the constant says so.
layout(constant_id = VKA_ID_BIAS_TYPE) const uint BIAS_TYPE_ID = VKA_FROM_PARAMS;
layout(constant_id = VKA_ID_MASK_KIND) const uint MASK_KIND_ID = VKA_FROM_PARAMS;
layout(constant_id = VKA_ID_FEATURES) const uint FEATURES_ID = VKA_FROM_PARAMS;
#define BIAS_TYPE (BIAS_TYPE_ID == VKA_FROM_PARAMS ? PARAMS.bias_type : BIAS_TYPE_ID)
#define MASK_KIND (MASK_KIND_ID == VKA_FROM_PARAMS ? PARAMS.mask_kind : MASK_KIND_ID)
#define FEATURES (FEATURES_ID == VKA_FROM_PARAMS ? PARAMS.features : FEATURES_ID)

// One (batch, head): its own lengths and the slices that visibility reads.
struct Member {
    int len_q, len_kv; // clamped to the call's
    int shift;         // i' = i + shift
    int prefix;        // keys below it are seen whatever the band says
    float slope;
    Slice mask, bias, q_segments, kv_segments;
};

#define CLAMPED_LENGTH(NAME, id, on, b, limit) \
    ((PARAMS.features & on) != 0 ? clamp(int(LOAD_WORD(NAME, tensor_slice(id, b, 0, 5), 0)), 0, int(limit)) : int(limit))

Member member(uint b, uint h)
{
    Member m;
    m.len_q = CLAMPED_LENGTH(Q_LENGTHS, VKA_Q_LENGTHS, VKA_Q_LENGTHS_ON, b, PARAMS.len_q);
    m.len_kv = CLAMPED_LENGTH(KV_LENGTHS, VKA_KV_LENGTHS, VKA_KV_LENGTHS_ON, b, PARAMS.len_kv);
    m.shift = (PARAMS.features & VKA_BOTTOM_RIGHT) != 0 ? m.len_kv - m.len_q : 0;
    m.prefix = (PARAMS.features & VKA_PREFIX_ON) != 0
                   ? min(CLAMPED_LENGTH(PREFIX, VKA_PREFIX, VKA_PREFIX_ON, b, PARAMS.len_kv), m.len_kv)
                   : 0;
    m.slope = 0;
    if ((FEATURES & VKA_ALIBI_ON) != 0)
        m.slope = uintBitsToFloat(LOAD_WORD(ALIBI, tensor_slice(VKA_ALIBI, 0, h, 5), 0));
    m.mask = MASK_KIND == VKA_MASK_NONE ? Slice(uvec2(0), 0)
                                        : tensor_slice(VKA_MASK, b, h, MASK_KIND == VKA_MASK_BITS ? 0 : 3);
    m.bias = BIAS_TYPE == VKA_TYPE_NONE ? Slice(uvec2(0), 0) : tensor_slice(VKA_BIAS, b, h, type_log2(BIAS_TYPE));
    m.q_segments = m.kv_segments = Slice(uvec2(0), 0);
    if ((FEATURES & VKA_SEGMENTS_ON) != 0) {
        m.q_segments = tensor_slice(VKA_Q_SEGMENTS, b, 0, 5);
        m.kv_segments = tensor_slice(VKA_KV_SEGMENTS, b, 0, 5);
    }
    return m;
}

// The keys that some row of a block can see: [begin, end) without [hole_begin, hole_end). Those of [0, full_prefix) and of
// [full_begin, full_end) are seen by all its rows, and nothing is to be tested element by element.
struct Span {
    int begin, hole_begin, hole_end, end;
    int full_prefix, full_begin, full_end;
};

// Rows first .. last of one member. Rows at or past len_q see nothing and do not count.
Span key_span(Member m, int first, int last)
{
    last = min(last, m.len_q - 1);
    if (first > last)
        return Span(0, 0, 0, 0, 0, 0, 0);
    int band_begin = clamp(first + m.shift - PARAMS.left, 0, m.len_kv);
    int band_end = max(band_begin, clamp(last + m.shift + PARAMS.right + 1, 0, m.len_kv));
    Span s = Span(band_begin, band_begin, band_begin, band_end, 0, 0, 0);
    if (m.prefix > 0)
        s = band_begin < band_end ? Span(0, min(m.prefix, band_begin), band_begin, max(m.prefix, band_end), 0, 0, 0)
                                  : Span(0, m.prefix, m.prefix, m.prefix, 0, 0, 0);
    if (MASK_KIND == VKA_MASK_NONE && BIAS_TYPE == VKA_TYPE_NONE && (FEATURES & (VKA_SEGMENTS_ON | VKA_ALIBI_ON)) == 0) {
        s.full_prefix = m.prefix;
        s.full_begin = max(0, last + m.shift - PARAMS.left);
        s.full_end = min(m.len_kv, first + m.shift + PARAMS.right + 1);
    }
    return s;
}

// The first key of the next step: `key`, or past the hole.
int span_next(Span s, int key)
{
    return key >= s.hole_begin && key < s.hole_end ? s.hole_end : key;
}

bool span_full(Span s, int key, int keys)
{
    return key + keys <= s.full_prefix || (key >= s.full_begin && key + keys <= s.full_end);
}

uint pair_index(uint tensor, int i, int j)
{
    return uint(i) * PARAMS.tensors[tensor].row_stride + uint(j);
}

// The keys that lengths, band and prefix let a row see: first .. last, and those below `prefix`.
struct Reach {
    int first, last, prefix;
};

Reach reach_of(Member m, int i)
{
    const bool row = i < m.len_q;
    const int middle = i + m.shift;
    return Reach(middle - PARAMS.left, row ? min(middle + PARAMS.right, m.len_kv - 1) : -1, row ? m.prefix : 0);
}

// Whether row i, with its reach, and key j have what is asked but for mask and bias. A key outside the reach is not read.
bool in_reach(Member m, Reach reach, int i, int j)
{
    // No operand that is more than a name: glslang makes a branch of those.
    const bool left = j >= reach.first, right = j <= reach.last, prefix = j < reach.prefix, band = left && right;
    bool seen = band || prefix;
    // What is not seen is not read either: its memory may end before it.
    if (seen && (FEATURES & VKA_SEGMENTS_ON) != 0)
        seen = LOAD_WORD(Q_SEGMENTS, m.q_segments, i) == LOAD_WORD(KV_SEGMENTS, m.kv_segments, min(j, m.len_kv - 1));
    return seen;
}

// What ALiBi takes off the score.
float distance_penalty(Member m, int i, int j)
{
    return (FEATURES & VKA_ALIBI_ON) != 0 ? m.slope * float(abs(j - (i + m.shift))) : 0.0;
}

// Whether row i sees key j, both inside the tensors; `bias` receives what is added to the score.
bool visible(Member m, int i, int j, out float bias)
{
    bool seen = in_reach(m, reach_of(m, i), i, j);
    bias = 0;
    if (seen && MASK_KIND != VKA_MASK_NONE) {
        uint log2_bits = MASK_KIND == VKA_MASK_BITS ? 0 : 3;
        bool is_true = LOAD_BITS(MASK, m.mask, pair_index(VKA_MASK, i, j), log2_bits) != 0;
        seen = is_true != ((FEATURES & VKA_MASK_IGNORES) != 0);
    }
    if (seen && BIAS_TYPE != VKA_TYPE_NONE) {
        bias = LOAD_ELEMENT(BIAS, m.bias, pair_index(VKA_BIAS, i, j), BIAS_TYPE);
        seen = !is_negative_infinity(bias);
    }
    bias -= distance_penalty(m, i, j);
    return seen;
}

// The score of a visible pair from scale * q.k and what visible() gave.
float finish_score(float product, float bias)
{
    if ((FEATURES & VKA_SOFTCAP) != 0)
        product = PARAMS.softcap * tanh_exact(product / PARAMS.softcap);
    // Adding 0 is not nothing to a compiler that must keep signed zeros.
    if (BIAS_TYPE != VKA_TYPE_NONE)
        return product + bias;
    return (FEATURES & VKA_ALIBI_ON) != 0 ? product + bias : product;
}

#endif
