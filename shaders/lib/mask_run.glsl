// Mask and bias of RUN_KEYS adjacent keys, for kernels that take several keys at once: the words that hold them are loaded
// together, where visible() loads one for each key. To be included after RUN_KEYS and RUN_LANES, constants, are defined;
// the mask's kind and the bias's type must be specialised.
//
// An invocation has a row. With RUN_LANES, subgroups of so many lanes whose rows follow one another, the words of each
// lane's row come from loads at addresses that are the same for all lanes: on llvmpipe a tenth of a gather's cost.
#ifndef MASK_RUN_GLSL
#define MASK_RUN_GLSL

#include "lib/mask.glsl"

const uint MASK_LOG2 = MASK_KIND_ID == VKA_MASK_BITS ? 0 : 3;
const uint BIAS_LOG2 = BIAS_TYPE_ID == VKA_TYPE_F32 ? 5 : 4;
const uint MASK_IN_WORD = 32 >> MASK_LOG2, BIAS_IN_WORD = 32 >> BIAS_LOG2;
const uint MASK_WORDS = (RUN_KEYS + MASK_IN_WORD - 1) / MASK_IN_WORD;
const uint BIAS_WORDS = (RUN_KEYS + BIAS_IN_WORD - 1) / BIAS_IN_WORD;
// A run that begins behind the first element of a word may reach into a word more.
const uint MASK_LOADS = (MASK_IN_WORD + RUN_KEYS - 2) / MASK_IN_WORD + 1;
const uint BIAS_LOADS = (BIAS_IN_WORD + RUN_KEYS - 2) / BIAS_IN_WORD + 1;

uint mask_run[MASK_WORDS + 1], bias_run[BIAS_WORDS + 1]; // the first key in the lowest bits; the last word is spare

// Of the keys from j on; keys behind `last`, the last one to be read, hold anything. `row` is the invocation's; first_row
// that of the subgroup's first lane; rows behind last_row are read as that one. No word is read that holds none of those
// keys. Where all are in front of `last`, offsets from the first word are constant.
#define DEFINE_RUN(NAME, TENSOR, ID, LOG2, WORDS, LOADS, RUN) \
    uint NAME##_word(Slice slice, int i, int j, int last, uint w, bool whole) \
    { \
        const Slice run = slice_at(slice, pair_index(ID, i, j), LOG2); \
        return LOAD_WORD(TENSOR, run, whole ? w : min(w, (uint(last - j) + run.skew) >> (5 - LOG2))); \
    } \
    void NAME##_words(Slice slice, int row, int first_row, int last_row, int j, int last, bool whole) \
    { \
        [[unroll]] for (uint w = 0; w < LOADS; w++) { \
            const bool inside = whole && w < WORDS; \
            if (RUN_LANES == 0) { \
                RUN[w] = NAME##_word(slice, row, j, last, w, inside); \
            } else { \
                RUN[w] = 0; \
                [[unroll]] for (uint y = 0; y < RUN_LANES; y++) \
                    RUN[w] = mix(RUN[w], NAME##_word(slice, min(first_row + int(y), last_row), j, last, w, inside), \
                                 gl_SubgroupInvocationID == y); \
            } \
        } \
    } \
    void NAME(Slice slice, int row, int first_row, int last_row, int j, int last) \
    { \
        RUN[WORDS] = 0; \
        if (j + int(RUN_KEYS) - 1 <= last) \
            NAME##_words(slice, row, first_row, last_row, j, last, true); \
        else \
            NAME##_words(slice, row, first_row, last_row, j, last, false); \
        const uint bit = element_bit(slice, pair_index(ID, row, j), LOG2); \
        if (LOG2 != 5) { \
            [[unroll]] for (uint w = 0; w < WORDS; w++) \
                RUN[w] = mix(RUN[w], (RUN[w] >> bit) | (RUN[w + 1] << (32 - bit)), bit != 0); \
        } \
    }

DEFINE_RUN(load_mask_run, MASK, VKA_MASK, MASK_LOG2, MASK_WORDS, MASK_LOADS, mask_run)
DEFINE_RUN(load_bias_run, BIAS, VKA_BIAS, BIAS_LOG2, BIAS_WORDS, BIAS_LOADS, bias_run)

void load_runs(Member m, int row, int first_row, int j, int last)
{
    if (MASK_KIND_ID != VKA_MASK_NONE)
        load_mask_run(m.mask, row, first_row, m.len_q - 1, j, last);
    if (BIAS_TYPE_ID != VKA_TYPE_NONE)
        load_bias_run(m.bias, row, first_row, m.len_q - 1, j, last);
}

// visible() of row i and key j, the k-th of the run; false for keys that no row reaches.
bool visible_in_run(Member m, Reach reach, int i, int j, uint k, out float bias)
{
    bool seen = in_reach(m, reach, i, j);
    bias = 0.0;
    if (MASK_KIND_ID != VKA_MASK_NONE) {
        const uint bits = mask_run[k / MASK_IN_WORD] >> (k % MASK_IN_WORD << MASK_LOG2);
        const bool is_true = (bits & ((1u << (1u << MASK_LOG2)) - 1)) != 0;
        const bool shown = is_true != ((FEATURES & VKA_MASK_IGNORES) != 0);
        seen = seen && shown;
    }
    if (BIAS_TYPE_ID != VKA_TYPE_NONE) {
        bias = decode(BIAS_TYPE_ID, bias_run[k / BIAS_IN_WORD] >> (k % BIAS_IN_WORD << BIAS_LOG2));
        const bool shown = !is_negative_infinity(bias);
        seen = seen && shown;
    }
    bias -= distance_penalty(m, i, j);
    return seen;
}

#endif
