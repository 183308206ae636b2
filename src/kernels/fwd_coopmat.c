/* fwd_coopmat: the path for matrix units. A row of the table is for one shape of matrices; the first whose shape the
 * device has counts. */
#include "kernel.h"

#include <inttypes.h>
#include <stdio.h>

#define CPU    (1u << CLASS_CPU | 1u << CLASS_CPU_OLD)
#define AMD    (1u << CLASS_AMD)
#define NVIDIA (1u << CLASS_NVIDIA)
#define INTEL  (1u << CLASS_INTEL)
#define GPU    (~CPU)

/* Few keys a step where shared memory is small. */
#define ANY_SHAPE(M, N, K)                                                                     \
    {.classes = GPU & ~AMD, .max_dim = 256, .matrix = {M, N, K}, .subgroups = 4, .keys = 32},  \
    {                                                                                          \
        .classes = GPU & ~AMD, .max_dim = 256, .matrix = {M, N, K}, .subgroups = 4, .keys = 16 \
    }

/* For AMD, RADV's compiler on a null device (Mesa 25.0.7, navi31): vector registers, subgroups per SIMD, share of
 * matrix products in the issue cycles of the vector unit, a product counted as 32. The rest is reasoning. */
static const struct tile tiles[] = {
    /* 144, 7, 68%; 64 keys: 192, 4, 73% */
    {.classes = AMD, .max_dim = 64, .matrix = {16, 16, 16}, .subgroups = 4, .keys = 32, .subgroup = 32},
    /* 216, 7, 77%; 4 subgroups: 240, 5, 76% */
    {.classes = AMD, .max_dim = 128, .matrix = {16, 16, 16}, .subgroups = 8, .keys = 32, .subgroup = 32},
    /* 216, 6. d = 256 spills 3 registers, and with subgroups of 32 dozens: it is left to fwd_tile */
    {.classes = AMD, .max_dim = 192, .matrix = {16, 16, 16}, .subgroups = 8, .keys = 32, .subgroup = 64},

    /* Reasoning: two work groups of 48 KiB an SM, as many registers as on AMD. */
    {.classes = NVIDIA, .max_dim = 128, .matrix = {16, 16, 16}, .subgroups = 4, .keys = 32, .subgroup = 32},

    /* Reasoning: the sizes in which Xe2 and Xe-HPG have their units. */
    {.classes = INTEL, .max_dim = 128, .matrix = {8, 16, 16}, .subgroups = 4, .keys = 32, .subgroup = 16},
    {.classes = INTEL, .max_dim = 128, .matrix = {8, 8, 16}, .subgroups = 8, .keys = 32, .subgroup = 8},

    /* Long sequences in the tests: the more keys a step, the fewer additions to a sum. */
    {.classes = CPU, .max_dim = 32, .matrix = {8, 8, 8}, .subgroups = 2, .keys = 32},
    /* 0.17 of what the probe reaches, whatever the tile: for correctness. 32 keys compile for longer. */
    {.classes = CPU, .max_dim = 256, .matrix = {8, 8, 8}, .subgroups = 2, .keys = 16},

    /* Any other device: subgroups of whatever size it has. */
    ANY_SHAPE(16, 16, 16),
    ANY_SHAPE(8, 16, 16),
    ANY_SHAPE(16, 8, 16),
    ANY_SHAPE(16, 8, 8),
    ANY_SHAPE(8, 8, 16),
    ANY_SHAPE(16, 16, 8),
    ANY_SHAPE(8, 8, 8),
};

extern const struct spirv vkattn_spirv_fwd_coopmat[2];
extern const struct kernel vkattn_fwd_coopmat;

static uint32_t tile_rows(const struct tile *tile)
{
    return tile->subgroups * tile->matrix.n;
}

static uint32_t group_rows(const struct problem *problem, const struct tile *tile)
{
    (void)problem;
    return tile_rows(tile);
}

static uint32_t subgroup_size(const struct caps *caps, const struct tile *tile)
{
    return tile->subgroup ? tile->subgroup : caps->subgroup_size;
}

static uint32_t round_up(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

/* The shader's k_stage, v_stage, scores, factors and `spoilt`. */
static uint32_t shared_bytes(const struct problem *problem, const struct tile *tile)
{
    const uint32_t m = tile->matrix.m, keys = tile->keys;
    const uint32_t octets = round_up(round_up(problem->dim_qk, tile->matrix.k), 8) / 8;
    const uint32_t columns = round_up(round_up(problem->dim_v, m), 8);
    const uint32_t k_stage = keys * (octets + 1), v_stage = (columns + m - 1) / m * (m * (keys / 8 + 1) + 1);
    const uint32_t scores = tile_rows(tile) * (keys / 4 + 1);
    return 16 * (k_stage + v_stage + scores) + 4 * tile_rows(tile) + 16;
}

/* The tile's shape among the device's; matrix_count: it has no such. */
static uint32_t find_matrix(const struct caps *caps, const struct tile *tile)
{
    uint32_t i = 0;
    while (i < caps->matrix_count && (caps->matrices[i].m != tile->matrix.m || caps->matrices[i].n != tile->matrix.n ||
                                      caps->matrices[i].k != tile->matrix.k))
        i++;
    return i;
}

static bool refuse_matrix(const struct caps *caps, const struct tile *tile, char reason[REASON_SIZE])
{
    const uint32_t i = find_matrix(caps, tile);
    if (caps->matrices_off)
        snprintf(reason, REASON_SIZE, "cooperative matrices are off: %s", caps->matrices_off);
    else if (caps->matrix_count == 0)
        snprintf(reason, REASON_SIZE, "no cooperative matrices of f16 with f32 sums are enabled on this device");
    else if (i == caps->matrix_count)
        snprintf(reason, REASON_SIZE, "the device has no matrices of %" PRIu32 "x%" PRIu32 "x%" PRIu32, tile->matrix.m,
                 tile->matrix.n, tile->matrix.k);
    else if (caps->matrix_off[i])
        snprintf(reason, REASON_SIZE, "matrices of %" PRIu32 "x%" PRIu32 "x%" PRIu32 " are off: %s", tile->matrix.m,
                 tile->matrix.n, tile->matrix.k, caps->matrix_off[i]);
    else
        return false;
    return true;
}

static bool is_power_of_two(uint32_t x)
{
    return x != 0 && (x & (x - 1)) == 0;
}

/* Invocations share a query's keys by eights, and one has at most 32 of them. */
static bool shares_keys(uint32_t subgroup, const struct tile *tile)
{
    const uint32_t parts = subgroup > tile->matrix.n ? subgroup / tile->matrix.n : 1;
    return is_power_of_two(subgroup) && tile->keys / parts >= 8 && tile->keys / parts <= 32;
}

/* An f32 accumulator to which n nearly equal terms are added drifts by some 0.14 n units (docs/tuning.md, "Long sums");
 * the bound of SEMANTICS allows 24 + 2 sqrt(keys). A term is a step. */
static bool drifts(const struct problem *problem, const struct tile *tile)
{
    const double keys = problem->len_kv, units = 0.14 * keys / tile->keys;
    return units > 24 && (units - 24) * (units - 24) > 4 * keys;
}

static bool refuse_types(const struct problem *problem, const struct caps *caps, char reason[REASON_SIZE])
{
    (void)caps;
    if (problem->kv_type == VKATTN_F32 || problem->q_type == VKATTN_F32)
        snprintf(reason, REASON_SIZE, "matrix units multiply 16-bit types: Q, K or V in f32 would lose range");
    else if (problem->q_type != problem->kv_type)
        snprintf(reason, REASON_SIZE, "matrix units want Q, K and V of one type");
    else if (problem->kv_type != VKATTN_F16)
        snprintf(reason, REASON_SIZE, "Q, K and V are bf16, for which no module was built");
    else
        return false;
    return true;
}

static bool refuse(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                   char reason[REASON_SIZE])
{
    const uint32_t dim = problem->dim_qk > problem->dim_v ? problem->dim_qk : problem->dim_v;
    const uint32_t subgroup = subgroup_size(caps, tile);
    if (refuse_types(problem, caps, reason) || refuse_matrix(caps, tile, reason))
        return true;
    if (dim > tile->max_dim)
        snprintf(reason, REASON_SIZE, "the tile is for heads of at most %" PRIu32 ", and this one is %" PRIu32,
                 tile->max_dim, dim);
    else if (!caps->subgroup_size_control || subgroup < caps->subgroup_size_min || subgroup > caps->subgroup_size_max)
        snprintf(reason, REASON_SIZE, "the device cannot be asked for subgroups of %" PRIu32, subgroup);
    else if (!shares_keys(subgroup, tile))
        snprintf(reason, REASON_SIZE, "subgroups of %" PRIu32 " do not share %" PRIu32 " keys of %" PRIu32 " rows",
                 subgroup, tile->keys, tile->matrix.n);
    else if (tile->subgroups * subgroup > caps->max_invocations)
        snprintf(reason, REASON_SIZE, "the tile has %" PRIu32 " invocations; the device allows %" PRIu32,
                 tile->subgroups * subgroup, caps->max_invocations);
    else if (shared_bytes(problem, tile) > caps->shared_bytes)
        snprintf(reason, REASON_SIZE, "the tile needs %" PRIu32 " bytes of shared memory; the device has %" PRIu32,
                 shared_bytes(problem, tile), caps->shared_bytes);
    else if (drifts(problem, tile))
        snprintf(reason, REASON_SIZE, "%" PRIu32 " keys: sums of so many steps would drift out of their bound",
                 problem->len_kv);
    else
        return false;
    return true;
}

static double cost(const struct problem *problem, const struct caps *caps, const struct tile *tile)
{
    /* Rows that fill up a subgroup's matrices cost what real ones do; subgroups without rows do not multiply. llvmpipe
     * multiplies matrices at 0.17 of the rate at which it multiplies anything else. */
    const bool cpu = vkattn_is_cpu(caps);
    const double rows = round_up(problem->len_q, tile->matrix.n);
    const double pairs = problem->len_q ? vkattn_pairs(problem) * rows / problem->len_q : 0;
    const double each = cpu ? 0.5 : 0.012;
    return each * pairs * problem->batch * problem->heads * (problem->dim_qk + problem->dim_v) + 1000;
}

static double rounds(const struct problem *problem, const struct tile *tile)
{
    return 2.0 * problem->len_kv / tile->keys * (tile->keys + 1) + problem->len_kv * 4.0;
}

static void constants(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                      uint32_t values[VKA_IDS])
{
    const uint32_t subgroup = subgroup_size(caps, tile);
    values[VKA_ID_WORKGROUP] = tile->subgroups * subgroup;
    vkattn_pair_constants(problem, values);
    values[VKA_ID_O_TYPE] = (uint32_t)problem->o_type;
    values[VKA_ID_KEYS] = tile->keys;
    values[VKA_ID_SUBGROUP] = subgroup;
    values[VKA_ID_MATRIX_M] = tile->matrix.m;
    values[VKA_ID_MATRIX_N] = tile->matrix.n;
    values[VKA_ID_MATRIX_K] = tile->matrix.k;
    values[VKA_ID_SHIFTED] = !vkattn_kv_on_words(problem);
    values[VKA_ID_SKIP] = !caps->joint_barriers;
}

const struct kernel vkattn_fwd_coopmat = {
    .name = "fwd_coopmat",
    .role = ROLE_FORWARD,
    .spirv = vkattn_spirv_fwd_coopmat,
    .p_type = VKATTN_F16,
    .tiles = tiles,
    .tile_count = sizeof tiles / sizeof *tiles,
    .refuse = refuse,
    .cost = cost,
    .rounds = rounds,
    .constants = constants,
    .group_rows = group_rows,
    .needs_words = true,
};
