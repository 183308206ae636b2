/* The catalogue: one line per kernel, and what kernels share. */
#include "kernel.h"

#include <stdio.h>

extern const struct kernel vkattn_fwd_rows, vkattn_fwd_tile, vkattn_fwd_coopmat, vkattn_fwd_decode, vkattn_fwd_combine,
    vkattn_fwd_merge, vkattn_fwd_weights, vkattn_kv_unpack;

const struct kernel *const vkattn_kernels[] = {
    &vkattn_fwd_rows,    &vkattn_fwd_tile,  &vkattn_fwd_coopmat, &vkattn_fwd_decode,
    &vkattn_fwd_combine, &vkattn_fwd_merge, &vkattn_fwd_weights, &vkattn_kv_unpack,
};

const uint32_t vkattn_kernel_count = sizeof vkattn_kernels / sizeof *vkattn_kernels;

const char *vkattn_kernel_name(uint32_t index)
{
    return index < vkattn_kernel_count ? vkattn_kernels[index]->name : NULL;
}

const char *vkattn_kernel_missing(uint32_t index)
{
    return index < vkattn_kernel_count ? vkattn_kernels[index]->spirv->missing : NULL;
}

void vkattn_spirv_words(const struct spirv *spirv, uint32_t words[])
{
    const uint16_t *unit = spirv->units;
    for (size_t i = 0; i < spirv->count; i++) {
        uint32_t word = *unit++;
        if (word >= 0x8000) {
            const uint32_t upper = word == 0xFFFF ? *unit++ : word - 0x8000;
            word = upper << 16 | *unit++;
        }
        words[i] = word;
    }
}

/* sum over n = 0 .. count-1 of clamp(first + n, 0, limit) */
static double clamped_sum(double first, double count, double limit)
{
    const double zeros = first < 0 ? (-first < count ? -first : count) : 0;
    const double start = first + zeros;
    double rising = start < limit ? limit - start : 0;
    if (rising > count - zeros)
        rising = count - zeros;
    return rising * start + rising * (rising - 1) / 2 + (count - zeros - rising) * limit;
}

double vkattn_pairs(const struct problem *problem)
{
    const double keys = problem->len_kv, rows = problem->len_q;
    const double shift = problem->bottom_right ? keys - rows : 0;
    if (-(double)problem->left > problem->right)
        return 0;
    /* Keys at or before i' + right, less those before i' - left. */
    return clamped_sum(shift + problem->right + 1, rows, keys) - clamped_sum(shift - problem->left, rows, keys);
}

bool vkattn_gives_subgroup(const struct caps *caps, const struct tile *tile)
{
    return tile->subgroup == 0 || (caps->subgroup_size_control && tile->subgroup >= caps->subgroup_size_min &&
                                   tile->subgroup <= caps->subgroup_size_max);
}

bool vkattn_rows_on_words(const struct tensor *t)
{
    const uint64_t elements = 32 / t->bits;
    return (t->row_stride % elements == 0 || t->rows <= 1) && t->head_stride % elements == 0 &&
           t->batch_stride % elements == 0;
}

bool vkattn_kv_on_words(const struct problem *problem)
{
    return !problem->mid_word_starts && vkattn_rows_on_words(&problem->tensors[TENSOR_K]) &&
           vkattn_rows_on_words(&problem->tensors[TENSOR_V]);
}

static uint32_t bit_if(bool condition, uint32_t bit)
{
    return condition ? bit : 0;
}

bool vkattn_is_cpu(const struct caps *caps)
{
    return caps->device_class == CLASS_CPU || caps->device_class == CLASS_CPU_OLD;
}

uint32_t vkattn_tile_rows(const struct problem *problem, const struct tile *tile)
{
    (void)problem;
    return tile->rows;
}

void vkattn_workgroup_constant(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                               uint32_t values[VKA_IDS])
{
    (void)problem, (void)caps;
    values[VKA_ID_WORKGROUP] = tile->workgroup;
}

void vkattn_pair_constants(const struct problem *problem, uint32_t values[VKA_IDS])
{
    values[VKA_ID_DIM_QK] = problem->dim_qk;
    values[VKA_ID_DIM_V] = problem->dim_v;
    values[VKA_ID_BIAS_TYPE] = problem->flags & VKATTN_BIAS ? (uint32_t)problem->bias_type : VKA_TYPE_NONE;
    values[VKA_ID_MASK_KIND] = (uint32_t)problem->mask_kind;
    values[VKA_ID_FEATURES] = vkattn_features(problem) & VKA_FEATURES_SPECIALISED;
}

uint32_t vkattn_features(const struct problem *p)
{
    const uint32_t flags = p->flags;
    return bit_if(p->softcap != 0, VKA_SOFTCAP) | bit_if(flags & VKATTN_ALIBI, VKA_ALIBI_ON) |
           bit_if(flags & VKATTN_SEGMENTS, VKA_SEGMENTS_ON) | bit_if(p->mask_ignores, VKA_MASK_IGNORES) |
           bit_if(p->bottom_right, VKA_BOTTOM_RIGHT) | bit_if(flags & VKATTN_PREFIX, VKA_PREFIX_ON) |
           bit_if(flags & VKATTN_KV_LENGTHS, VKA_KV_LENGTHS_ON) | bit_if(flags & VKATTN_Q_LENGTHS, VKA_Q_LENGTHS_ON) |
           bit_if(flags & VKATTN_SINKS, VKA_SINKS_ON) |
           bit_if(flags & (VKATTN_WRITE_LSE | VKATTN_WRITE_WEIGHTS), VKA_LSE_ON) |
           bit_if(flags & VKATTN_LSE_BASE_2, VKA_LSE_BASE_2);
}
