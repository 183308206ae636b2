/* fwd_decode: few queries against many keys, cut into parts that fwd_combine joins. */
#include "kernel.h"

#include <inttypes.h>
#include <stdio.h>

#define CPU     (1u << CLASS_CPU)
#define CPU_OLD (1u << CLASS_CPU_OLD)
#define GPU     (~(CPU | CPU_OLD))

/* One subgroup is a work group; `rows` is the most of one. On llvmpipe decode-f16-d128 (H = 32, G = 8, Tk = 4096) takes
 * 2.6 ms of processor time; docs/tuning.md has what was tried. */
static const struct tile tiles[] = {
    /* d = 128, G = 4: 2.4 ms, and 2.6 with 4 rows; 16 keys a step 2.8 */
    {.classes = CPU, .max_dim = 128, .workgroup = 8, .rows = 8, .keys = 8, .split = 1, .subgroup = 8},
    {.classes = CPU, .max_dim = 256, .workgroup = 8, .rows = 4, .keys = 8, .split = 1, .subgroup = 8},
    /* 4 rows: a quarter faster, and compile for twice as long: over 2 s */
    {.classes = CPU, .max_dim = 576, .workgroup = 8, .rows = 2, .keys = 8, .split = 1, .subgroup = 8},
    /* SwiftShader compiles 4 rows at d = 64 for 8 s; cost() keeps it away */
    {.classes = CPU, .max_dim = 576, .workgroup = 4, .rows = 1, .keys = 4, .split = 1, .subgroup = 4},
    /* Vectors of 512 bits, by reasoning: Mesa 26.1.6 aborts there by address */
    {.classes = CPU, .max_dim = 576, .workgroup = 16, .rows = 4, .keys = 16, .split = 1, .subgroup = 16},
    /* Mesa 22 compiles more for seconds; d = 64: 3.1 ms where fwd_rows takes 41 */
    {.classes = CPU_OLD, .max_dim = 64, .workgroup = 8, .rows = 1, .keys = 8, .split = 1, .subgroup = 8},

    /* The form for GPUs on CPU drivers: never preferred, for tests. */
    {.classes = CPU, .max_dim = 576, .workgroup = 8, .rows = 3, .keys = 8, .split = 4, .subgroup = 8},
    {.classes = CPU, .max_dim = 576, .workgroup = 8, .rows = 2, .keys = 4, .split = 8, .subgroup = 8},
    {.classes = CPU, .max_dim = 576, .workgroup = 4, .rows = 1, .keys = 4, .split = 2, .subgroup = 4},

    /* GPUs: `split` lanes hold a row of K or V, four words each; 16 fit f16 of d = 128. RADV's compiler on null devices
     * (Mesa 25.0.7), navi21, f16, d = 128, of the key loop: 72 vector instructions a key with 4 heads in a group (160
     * registers, 6 subgroups per SIMD), 132 with 8 (256, 4); no spills; every load of 128 bits */
    {.classes = GPU, .max_dim = 128, .workgroup = 32, .rows = 8, .keys = 16, .split = 16, .subgroup = 32},
    /* By reasoning: as many registers */
    {.classes = GPU, .max_dim = 256, .workgroup = 32, .rows = 4, .keys = 8, .split = 16, .subgroup = 32},
    {.classes = GPU, .max_dim = 576, .workgroup = 32, .rows = 2, .keys = 4, .split = 32, .subgroup = 32},
    {.classes = GPU, .max_dim = 128, .workgroup = 64, .rows = 8, .keys = 16, .split = 16, .subgroup = 64},
    {.classes = GPU, .max_dim = 576, .workgroup = 64, .rows = 2, .keys = 8, .split = 16, .subgroup = 64},
    {.classes = GPU, .max_dim = 128, .workgroup = 16, .rows = 4, .keys = 8, .split = 8, .subgroup = 16},
};

extern const struct spirv vkattn_spirv_fwd_decode[2];
extern const struct kernel vkattn_fwd_decode;

static double packed_rows(const struct problem *problem)
{
    return (double)problem->len_q * problem->group;
}

/* As few work groups as the tile allows, and rows spread evenly over them. */
static uint32_t group_rows(const struct problem *problem, const struct tile *tile)
{
    const double packed = packed_rows(problem);
    if (packed <= tile->rows)
        return packed > 1 ? (uint32_t)packed : 1;
    const double blocks = (double)(uint64_t)((packed + tile->rows - 1) / tile->rows);
    return (uint32_t)((packed + blocks - 1) / blocks);
}

/* Fewer keys than this are not worth a part: joining costs as much. */
enum { LEAST_KEYS = 256 };

static uint32_t parts(const struct problem *problem, const struct caps *caps, const struct tile *tile)
{
    if (problem->parts)
        return problem->parts;
    const double rows = group_rows(problem, tile);
    const double blocks = (double)(uint64_t)((packed_rows(problem) + rows - 1) / rows);
    const double groups = blocks * problem->batch * problem->kv_heads;
    const double most = problem->len_kv / LEAST_KEYS + 1.0;
    double wanted = groups > 0 ? (double)(uint64_t)((caps->fill_groups + groups - 1) / groups) : 1;
    wanted = wanted < most ? wanted : most;
    return wanted < 1 ? 1 : wanted > VKATTN_MAX_PARTS ? VKATTN_MAX_PARTS : (uint32_t)wanted;
}

static bool refuse(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                   char reason[REASON_SIZE])
{
    const uint32_t dim = problem->dim_qk > problem->dim_v ? problem->dim_qk : problem->dim_v;
    /* The sums of a head, in as many parts as a caller may ask for, are counted in 32 bits. */
    const double most_rows = 4294967295.0 / 4 / (problem->dim_v + 3) / VKATTN_MAX_PARTS;
    if (!caps->shuffles)
        snprintf(reason, REASON_SIZE, "the device has no subgroup shuffles in compute shaders");
    else if (!vkattn_gives_subgroup(caps, tile))
        snprintf(reason, REASON_SIZE, "the tile needs subgroups of %" PRIu32 ", which the device cannot be asked for",
                 tile->subgroup);
    else if (dim > tile->max_dim)
        snprintf(reason, REASON_SIZE, "the tile is for heads of at most %" PRIu32 ", and this one is %" PRIu32,
                 tile->max_dim, dim);
    else if (problem->len_q > most_rows || packed_rows(problem) > 0x7FFFFFFF)
        snprintf(reason, REASON_SIZE, "len_q is %" PRIu32 ": too many rows to be kept by parts", problem->len_q);
    else
        return false;
    return true;
}

static double cost(const struct problem *problem, const struct caps *caps, const struct tile *tile)
{
    const double rows = group_rows(problem, tile), packed = packed_rows(problem);
    const double blocks = (double)(uint64_t)((packed + rows - 1) / rows);
    const double keys = problem->len_q ? vkattn_pairs(problem) / problem->len_q : 0;
    /* On AMD twice the instructions of a full tile for each row (compiled only). SwiftShader, of 4 lanes, takes three
     * times as long as with fwd_rows, and compiles for seconds. Rows in mid-word: two loads for each word. */
    const bool cpu = vkattn_is_cpu(caps);
    const double class_unit = !cpu ? 0.13 : tile->subgroup < 8 ? 8 : 0.08;
    const double unit = problem->kv_type == VKATTN_F32 || vkattn_kv_on_words(problem) ? class_unit : 2 * class_unit;
    /* Fetching a key for a block costs about what three rows of it do. */
    return unit * keys * problem->batch * problem->kv_heads * blocks * (rows + 3) * (problem->dim_qk + problem->dim_v) +
           2000;
}

static double rounds(const struct problem *problem, const struct tile *tile)
{
    return (1.0 + tile->rows) * ((double)problem->len_kv / tile->keys + 2);
}

/* As fwd_tile's fold, within a part. A term is a step, or where rows are spread over lanes, a lane's key. */
static uint32_t fold_steps(const struct problem *problem, const struct caps *caps, const struct tile *tile)
{
    const uint32_t terms = tile->split > 1 ? tile->keys * tile->split / tile->subgroup : 1;
    const double keys = (double)problem->len_kv / parts(problem, caps, tile) + tile->keys;
    return keys / tile->keys * terms > 512 ? 256 / terms : 0;
}

static void constants(const struct problem *problem, const struct caps *caps, const struct tile *tile,
                      uint32_t values[VKA_IDS])
{
    values[VKA_ID_WORKGROUP] = tile->workgroup;
    vkattn_pair_constants(problem, values);
    values[VKA_ID_Q_TYPE] = (uint32_t)problem->q_type;
    values[VKA_ID_KV_TYPE] = (uint32_t)problem->kv_type;
    values[VKA_ID_ROWS] = group_rows(problem, tile);
    values[VKA_ID_KEYS] = tile->keys;
    values[VKA_ID_SUBGROUP] = tile->subgroup;
    values[VKA_ID_SPREAD] = tile->split > 1 ? tile->split : 0;
    /* On llvmpipe it costs 7%, for whatever reason. */
    values[VKA_ID_ONE_QUERY] = problem->len_q <= 1 && tile->split > 1;
    values[VKA_ID_UNIFORM] = caps->device_class == CLASS_CPU ? tile->subgroup : 0;
    values[VKA_ID_SHIFTED] = problem->kv_type != VKATTN_F32 && !vkattn_kv_on_words(problem);
    values[VKA_ID_FOLD] = fold_steps(problem, caps, tile);
}

const struct kernel vkattn_fwd_decode = {
    .name = "fwd_decode",
    .role = ROLE_FORWARD,
    .work = WORK_PACKED,
    .spirv = vkattn_spirv_fwd_decode,
    .p_type = VKATTN_F32,
    .tiles = tiles,
    .tile_count = sizeof tiles / sizeof *tiles,
    .refuse = refuse,
    .cost = cost,
    .rounds = rounds,
    .constants = constants,
    .group_rows = group_rows,
    .parts = parts,
    .needs_words = true,
};
