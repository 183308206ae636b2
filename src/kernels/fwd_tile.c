/* fwd_tile: the fast path without matrix units. Sizes are numbers of this table; the shader is one. */
#include "kernel.h"

#include <inttypes.h>
#include <stdio.h>

#define CPU     (1u << CLASS_CPU)
#define CPU_OLD (1u << CLASS_CPU_OLD)
#define AMD     (1u << CLASS_AMD)
#define NVIDIA  (1u << CLASS_NVIDIA)
#define INTEL   (1u << CLASS_INTEL)
#define GPU     (~(CPU | CPU_OLD))

/* Measured on llvmpipe of Mesa 26 (times the rate of bench/probe.comp, at T = 1024 and 8 heads) and, for AMD, with
 * RADV's compiler on null devices (Mesa 25.0.7, navi21: vector registers, subgroups per SIMD, share of multiply-adds);
 * the rest by reasoning. docs/tuning.md has what was tried. */
static const struct tile tiles[] = {
    /* 1.34; 16 keys 1.11, 8 keys 1.15 */
    {.classes = CPU,
     .addresses = true,
     .max_dim = 32,
     .workgroup = 64,
     .rows = 1,
     .keys = 12,
     .qk_keys = 12,
     .pv_keys = 12,
     .split = 1},
    /* d = 64: 1.45; d = 128: 1.25; d = 256: 1.16; d = 384: 1.10. Two rows an invocation: 0.98, the body leaves the op
     * cache */
    {.classes = CPU,
     .addresses = true,
     .max_dim = 384,
     .workgroup = 64,
     .rows = 1,
     .keys = 8,
     .qk_keys = 8,
     .pv_keys = 8,
     .split = 1},
    /* 0.94; 6 keys 1.04, and compile for 1.9 s instead of 1.3 */
    {.classes = CPU,
     .addresses = true,
     .max_dim = 576,
     .workgroup = 64,
     .rows = 1,
     .keys = 4,
     .qk_keys = 4,
     .pv_keys = 4,
     .split = 1},
    /* By descriptor 0.22 with 8 keys as with one; and 8 compile for minutes at d = 375, one for seconds */
    {.classes = CPU, .max_dim = 576, .workgroup = 64, .rows = 1, .keys = 1, .qk_keys = 1, .pv_keys = 1, .split = 1},
    /* Mesa 22.3.6 0.01, with 8 keys as with one; 25.0.7 (Debian 13's, d = 64) 0.18, compile 5 s, with 8 keys 0.11 and
     * 26 s */
    {.classes = CPU_OLD, .max_dim = 576, .workgroup = 64, .rows = 1, .keys = 1, .qk_keys = 1, .pv_keys = 1, .split = 1},

    /* d = 32: 112 registers, 9, 69%; d = 64: 160, 6, 81%. More than 2 keys in a pass over q, or d outermost in PV,
     * spills SGPRs: the loads of all keys are live at once */
    {.classes = AMD,
     .max_dim = 64,
     .workgroup = 64,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 1,
     .subgroup = 32},
    /* 160, 6, 80%; in one part 256 registers and spills */
    {.classes = AMD,
     .max_dim = 128,
     .workgroup = 128,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 2,
     .subgroup = 32},
    /* 160, 6, 83% */
    {.classes = AMD,
     .max_dim = 192,
     .workgroup = 96,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 3,
     .subgroup = 32},
    /* 192, 5, 83% */
    {.classes = AMD,
     .max_dim = 256,
     .workgroup = 128,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 4,
     .subgroup = 32},
    /* 208 to 224, 4, 82% */
    {.classes = AMD,
     .max_dim = 576,
     .workgroup = 256,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 8,
     .subgroup = 32},

    /* GCN (vega10), whose subgroups are 64: d = 64: 112 registers, 2 of at most 10, 72%; d = 128: 112, 2, 71%; d = 256:
     * 128, 2, 68%. In one part 256 registers and spills. In f16, decoding takes the share down to 42% */
    {.classes = AMD,
     .max_dim = 32,
     .workgroup = 64,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 1,
     .subgroup = 64},
    {.classes = AMD,
     .max_dim = 64,
     .workgroup = 128,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 2,
     .subgroup = 64},
    {.classes = AMD,
     .max_dim = 128,
     .workgroup = 256,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 4,
     .subgroup = 64},
    {.classes = AMD,
     .max_dim = 256,
     .workgroup = 512,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 8,
     .subgroup = 64},
    {.classes = AMD,
     .max_dim = 576,
     .workgroup = 1024,
     .rows = 1,
     .keys = 8,
     .qk_keys = 2,
     .pv_keys = 1,
     .split = 16,
     .subgroup = 64},

    /* Reasoning: subgroups of 32 hold 160 to 255 registers an invocation; q, acc and s of one row of 64 take 136. Wider
     * heads are split over subgroups, which all such devices can be asked for. */
    {.classes = NVIDIA, .max_dim = 64, .workgroup = 64, .rows = 1, .keys = 8, .qk_keys = 4, .pv_keys = 4, .split = 1},
    {.classes = NVIDIA,
     .max_dim = 128,
     .workgroup = 128,
     .rows = 1,
     .keys = 8,
     .qk_keys = 4,
     .pv_keys = 4,
     .split = 2,
     .subgroup = 32},
    {.classes = NVIDIA,
     .max_dim = 256,
     .workgroup = 128,
     .rows = 1,
     .keys = 8,
     .qk_keys = 4,
     .pv_keys = 4,
     .split = 4,
     .subgroup = 32},
    {.classes = NVIDIA,
     .max_dim = 576,
     .workgroup = 256,
     .rows = 1,
     .keys = 8,
     .qk_keys = 4,
     .pv_keys = 4,
     .split = 8,
     .subgroup = 32},

    /* Reasoning: 128 registers of 16 lanes leave about 48 for q and acc on Xe-LP, so parts of 32. */
    {.classes = INTEL, .max_dim = 32, .workgroup = 64, .rows = 1, .keys = 8, .qk_keys = 4, .pv_keys = 4, .split = 1},
    {.classes = INTEL,
     .max_dim = 64,
     .workgroup = 64,
     .rows = 1,
     .keys = 8,
     .qk_keys = 4,
     .pv_keys = 4,
     .split = 2,
     .subgroup = 16},
    {.classes = INTEL,
     .max_dim = 128,
     .workgroup = 128,
     .rows = 1,
     .keys = 8,
     .qk_keys = 4,
     .pv_keys = 4,
     .split = 4,
     .subgroup = 16},
    {.classes = INTEL,
     .max_dim = 256,
     .workgroup = 128,
     .rows = 1,
     .keys = 8,
     .qk_keys = 4,
     .pv_keys = 4,
     .split = 8,
     .subgroup = 16},

    /* No subgroups, no shared memory: whatever cannot be asked for a subgroup size, and devices that nobody measured.
     * Few keys a step keep registers down. */
    {.classes = GPU, .max_dim = 64, .workgroup = 64, .rows = 1, .keys = 8, .qk_keys = 4, .pv_keys = 4, .split = 1},
    {.classes = GPU, .max_dim = 256, .workgroup = 64, .rows = 1, .keys = 4, .qk_keys = 4, .pv_keys = 4, .split = 1},
};

extern const struct spirv vkattn_spirv_fwd_tile[2];
extern const struct kernel vkattn_fwd_tile;

static uint32_t tile_rows(const struct tile *tile)
{
    return tile->workgroup / tile->split;
}

static uint32_t group_rows(const struct problem *problem, const struct tile *tile)
{
    (void)problem;
    return tile_rows(tile);
}

/* The shader's `exchange`, two buffers of partial scores, and `spoilt`. */
static uint32_t shared_bytes(const struct tile *tile)
{
    return tile->split == 1 ? 32 : 2 * tile->split * ((tile->keys + 3) / 4) * tile_rows(tile) * 16 + 16;
}

/* Bytes of f32 copies of K and V. */
static double copy_bytes(const struct problem *problem)
{
    return 4.0 * problem->batch * problem->kv_heads * problem->len_kv * (problem->dim_qk + problem->dim_v + 6);
}

/* A copy that is larger is worth less than the memory that it takes. */
static const double most_copy_bytes = 0x1p30;

/* The inner loop reads words. Decoding 16-bit types there costs llvmpipe 40% of its speed and, at d = 512, a minute of
 * compilation; a pass over K and V costs what 80 rows of queries gain (docs/tuning.md). On AMD decoding is free. */
static bool unpack(const struct problem *problem, const struct caps *caps, const struct tile *tile)
{
    (void)tile;
    return problem->kv_type != VKATTN_F32 &&
           (!vkattn_kv_on_words(problem) || (vkattn_is_cpu(caps) && copy_bytes(problem) <= most_copy_bytes));
}

static bool refuse(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                   char reason[REASON_SIZE])
{
    const uint32_t dim = problem->dim_qk > problem->dim_v ? problem->dim_qk : problem->dim_v;
    if (dim > tile->max_dim)
        snprintf(reason, REASON_SIZE, "the tile is for heads of at most %" PRIu32 ", and this one is %" PRIu32,
                 tile->max_dim, dim);
    else if (tile->workgroup > caps->max_invocations)
        snprintf(reason, REASON_SIZE, "the tile has %" PRIu32 " invocations; the device allows %" PRIu32,
                 tile->workgroup, caps->max_invocations);
    else if (shared_bytes(tile) > caps->shared_bytes)
        snprintf(reason, REASON_SIZE, "the tile needs %" PRIu32 " bytes of shared memory; the device has %" PRIu32,
                 shared_bytes(tile), caps->shared_bytes);
    else if (problem->kv_type != VKATTN_F32 && !vkattn_kv_on_words(problem) && copy_bytes(problem) > most_copy_bytes)
        snprintf(reason, REASON_SIZE, "rows of K or V start in mid-word, and f32 copies would take %.0f bytes",
                 copy_bytes(problem));
    else
        return false;
    return true;
}

static double cost(const struct problem *problem, const struct caps *caps, const struct tile *tile)
{
    /* Rows that fill up the last block cost what real ones do. */
    const double rows = tile_rows(tile), blocks = (problem->len_q + tile_rows(tile) - 1) / tile_rows(tile);
    const double pairs = problem->len_q ? vkattn_pairs(problem) * blocks * rows / problem->len_q : 0;
    const double copy = unpack(problem, caps, tile) ? 1.6 * copy_bytes(problem) : 0;
    /* Old llvmpipe compiles wide heads for up to a minute: only where nothing else runs. */
    const bool slow = caps->device_class == CLASS_CPU_OLD && (problem->dim_qk > 256 || problem->dim_v > 256);
    const double unit = slow ? 6 : 0.06;
    return unit * pairs * problem->batch * problem->heads * (problem->dim_qk + problem->dim_v) + copy + 1000;
}

/* An f32 accumulator to which n nearly equal terms are added drifts by some 0.14 n units; the bound of SEMANTICS allows
 * 24 + 2 sqrt(keys). A term is PV_KEYS keys, and in the second pass one. After 256 terms the accumulator is folded into
 * a sum in the workspace, which costs a load and a store per element; up to 512 terms stay below the bound without. */
static uint32_t fold_keys(const struct problem *problem, const struct tile *tile)
{
    return problem->len_kv > 512 ? 256 / (tile->keys / tile->pv_keys) * tile->keys : 0;
}

/* Both passes over the keys, their folds, and with VKA_ID_ROLLED what is done to each chunk once a row. */
static double rounds(const struct problem *problem, const struct tile *tile)
{
    const double keys = problem->len_kv, chunks = problem->dim_qk / 4.0 + problem->dim_v / 4.0 + 2;
    const uint32_t fold = fold_keys(problem, tile);
    const double folds = fold ? keys / fold + keys / (fold / tile->pv_keys) + 2 : 2;
    return keys + keys / tile->keys + folds * (problem->dim_v / 4.0 + 2) + chunks + 2;
}

static void constants(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                      uint32_t values[VKA_IDS])
{
    values[VKA_ID_WORKGROUP] = tile->workgroup;
    vkattn_pair_constants(problem, values);
    values[VKA_ID_Q_TYPE] = (uint32_t)problem->q_type;
    values[VKA_ID_KV_TYPE] = (uint32_t)problem->kv_type;
    values[VKA_ID_O_TYPE] = (uint32_t)problem->o_type;
    values[VKA_ID_KEYS] = tile->keys;
    values[VKA_ID_QK_KEYS] = tile->qk_keys;
    values[VKA_ID_PV_KEYS] = tile->pv_keys;
    values[VKA_ID_SPLIT] = tile->split;
    values[VKA_ID_SUBGROUP] = vkattn_gives_subgroup(caps, tile) ? tile->subgroup : 0;
    values[VKA_ID_UNPACKED] = unpack(problem, caps, tile);
    values[VKA_ID_FOLD] = fold_keys(problem, tile);
    values[VKA_ID_ROLLED] = vkattn_is_cpu(caps);
    const bool uniform = caps->device_class == CLASS_CPU && tile->addresses && tile->split == 1;
    values[VKA_ID_UNIFORM] = uniform ? caps->subgroup_size : 0;
}

const struct kernel vkattn_fwd_tile = {
    .name = "fwd_tile",
    .role = ROLE_FORWARD,
    .spirv = vkattn_spirv_fwd_tile,
    .p_type = VKATTN_F32,
    .tiles = tiles,
    .tile_count = sizeof tiles / sizeof *tiles,
    .refuse = refuse,
    .cost = cost,
    .rounds = rounds,
    .constants = constants,
    .group_rows = group_rows,
    .unpack = unpack,
    .needs_words = true,
};
