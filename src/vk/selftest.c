/* The self-test of a device: small problems through the kernels, whose results are known from plain arithmetic. */
#include "vk.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Rows that fill no block, keys that fill no step, most of which need no test under a causal mask; a width that fills
 * no matrix. */
enum { ROWS = 20, KEYS = 100, DIM = 40, WIDE = 128 };

/* Eighths up to 1 as halves: what they are multiplied to is exact in f32, in any order. */
static const uint16_t eighths[9] = {0, 0x3000, 0x3400, 0x3600, 0x3800, 0x3900, 0x3A00, 0x3B00, 0x3C00};

struct data {
    uint32_t dim;
    int q[ROWS * WIDE], k[KEYS * WIDE], v[KEYS * WIDE]; /* in eighths, -8 .. 8 */
    union {
        uint16_t halves[KEYS * WIDE];
        float floats[KEYS * WIDE];
    } in[3];
    float o[ROWS * WIDE];
};

static void fill(int *numbers, uint32_t count, uint32_t seed)
{
    for (uint32_t n = 0; n < count; n++) {
        seed = seed * 1664525u + 1013904223u; /* Numerical Recipes' generator */
        numbers[n] = (int)(seed >> 24) % 17 - 8;
    }
}

static void store(struct data *data, uint32_t tensor, const int *numbers, uint32_t count, bool as_halves)
{
    for (uint32_t n = 0; n < count; n++)
        if (as_halves)
            data->in[tensor].halves[n] =
                (uint16_t)(eighths[numbers[n] < 0 ? -numbers[n] : numbers[n]] | (numbers[n] < 0 ? 0x8000 : 0));
        else
            data->in[tensor].floats[n] = (float)numbers[n] / 8;
}

static void make(struct data *data, uint32_t dim, bool as_halves)
{
    data->dim = dim;
    fill(data->q, ROWS * dim, 1);
    fill(data->k, KEYS * dim, 2);
    fill(data->v, KEYS * dim, 3);
    store(data, 0, data->q, ROWS * dim, as_halves);
    store(data, 1, data->k, KEYS * dim, as_halves);
    store(data, 2, data->v, KEYS * dim, as_halves);
}

/* Whether a row of O is as the formula says. |V| is at most 1: the errors are absolute. */
static bool row_is_right(const struct data *data, uint32_t row, double tolerance)
{
    const uint32_t keys = KEYS - ROWS + row + 1, dim = data->dim;
    double p[KEYS], sum = 0;
    for (uint32_t j = 0; j < keys; j++) {
        double s = 0;
        for (uint32_t r = 0; r < dim; r++)
            s += data->q[row * dim + r] * data->k[j * dim + r] / 64.0;
        p[j] = exp(s / sqrt(dim)); /* |s| is at most dim: no overflow */
        sum += p[j];
    }
    for (uint32_t r = 0; r < dim; r++) {
        double o = 0;
        for (uint32_t j = 0; j < keys; j++)
            o += p[j] / sum * data->v[j * dim + r] / 8.0;
        if (!(fabs(data->o[row * dim + r] - o) <= tolerance))
            return false;
    }
    return true;
}

static vkattn_problem problem_of(uint32_t dim, vkattn_dtype type)
{
    return (vkattn_problem){.len_q = ROWS,
                            .len_kv = KEYS,
                            .dim_qk = dim,
                            .q_type = type,
                            .kv_type = type,
                            .flags = VKATTN_CAUSAL,
                            .align = VKATTN_BOTTOM_RIGHT};
}

static const char wrong_text[] = "the self-test found wrong results";
static const char failed_text[] = "the self-test could not run them";

/* `off`: NULL, or why what the plan relies on is to be off. The status is other than VKATTN_OK where going on is no
 * use. */
static vkattn_status try_tile(vkattn_device *device, VkQueue queue, struct data *data, const vkattn_problem *problem,
                              const vkattn_options *options, const char **off)
{
    const double tolerance = problem->kv_type == VKATTN_F32 ? 0x1p-16 : 0x1p-9; /* P in halves is good to 2^-11 */
    const vkattn_tensors tensors = {.q = &data->in[0], .k = &data->in[1], .v = &data->in[2], .o = data->o};
    make(data, problem->dim_qk, problem->kv_type != VKATTN_F32);
    const vkattn_status status = vkattn_attend_on(device, queue, problem, options, &tensors);
    *off = status == VKATTN_OK ? NULL : failed_text;
    for (uint32_t row = 0; row < ROWS && *off == NULL; row++)
        if (!row_is_right(data, row, tolerance))
            *off = wrong_text;
    if (*off == NULL && (device->info.limits & VKATTN_LIMIT_FAIL_SELFTEST))
        *off = wrong_text;
    return status == VKATTN_DEVICE_LOST || status == VKATTN_NO_MEMORY ? status : VKATTN_OK;
}

static uint32_t index_of(const struct caps *caps, struct matrix shape)
{
    uint32_t i = 0;
    while (caps->matrices[i].m != shape.m || caps->matrices[i].n != shape.n || caps->matrices[i].k != shape.k)
        i++;
    return i;
}

/* The shape that planning takes, and where that is off, the next. */
static vkattn_status test_kernel(vkattn_device *device, VkQueue queue, const char *kernel, struct data *data)
{
    const vkattn_problem problem = problem_of(DIM, VKATTN_F16);
    const vkattn_options options = {.kernel = kernel};
    struct caps *caps = &device->caps;
    struct problem canonical;
    struct plan plan;
    TRY(vkattn_problem_canonical(&problem, sizeof problem, &canonical));
    while (vkattn_plan_choose(&canonical, caps, &options, &plan, NULL) == VKATTN_OK) {
        const uint32_t i = index_of(caps, vkattn_forward_step(&plan)->tile->matrix);
        if (caps->matrix_tested[i])
            break;
        caps->matrix_tested[i] = true;
        TRY(try_tile(device, queue, data, &problem, &options, &caps->matrix_off[i]));
    }
    return VKATTN_OK;
}

static vkattn_status test_matrices(vkattn_device *device, VkQueue queue, struct data *data)
{
    for (uint32_t k = 0; k < vkattn_kernel_count; k++)
        if (vkattn_kernels[k]->tiles->matrix.m != 0)
            TRY(test_kernel(device, queue, vkattn_kernels[k]->name, data));
    return VKATTN_OK;
}

/* Heads that are split over subgroups rely on their size and on their numbers. */
static vkattn_status test_subgroups(vkattn_device *device, VkQueue queue, struct data *data)
{
    const vkattn_problem problem = problem_of(WIDE, VKATTN_F32);
    const vkattn_options options = {0};
    struct caps *caps = &device->caps;
    struct problem canonical;
    struct plan plan;
    TRY(vkattn_problem_canonical(&problem, sizeof problem, &canonical));
    if (!caps->subgroup_size_control || vkattn_plan_choose(&canonical, caps, NULL, &plan, NULL) != VKATTN_OK ||
        vkattn_forward_step(&plan)->tile->split <= 1)
        return VKATTN_OK;
    const vkattn_status status = try_tile(device, queue, data, &problem, &options, &caps->subgroups_off);
    caps->subgroups_tested = true;
    caps->subgroup_size_control = caps->subgroups_off == NULL;
    return status;
}

vkattn_status vkattn_device_selftest(vkattn_device *device, VkQueue queue)
{
    REQUIRE(device, "device is NULL");
    REQUIRE(queue, "queue is VK_NULL_HANDLE");
    struct data *data = calloc(1, sizeof *data);
    if (data == NULL)
        return vkattn_fail(VKATTN_NO_MEMORY, "out of host memory for the self-test");
    vkattn_status status = test_matrices(device, queue, data);
    if (status == VKATTN_OK)
        status = test_subgroups(device, queue, data);
    free(data);
    return status;
}

/* ---- What is used ---------------------------------------------------------------------------------------------- */

static void describe(vkattn_unit *unit, bool tested, const char *off)
{
    unit->state = off ? VKATTN_UNIT_OFF : tested ? VKATTN_UNIT_RIGHT : VKATTN_UNIT_UNTESTED;
    snprintf(unit->reason, sizeof unit->reason, "%s", off ? off : "");
}

int vkattn_device_unit(const vkattn_device *device, uint32_t index, vkattn_unit *unit)
{
    const struct caps *caps = &device->caps;
    const uint32_t matrices = caps->matrices_off ? 1 : caps->matrix_count;
    const bool sizes = caps->subgroup_size_control || caps->subgroups_off;
    if (index >= matrices + sizes)
        return 0;
    if (index == matrices) {
        snprintf(unit->name, sizeof unit->name, "subgroups of a required size");
        describe(unit, caps->subgroups_tested, caps->subgroups_off);
    } else if (caps->matrices_off) {
        snprintf(unit->name, sizeof unit->name, "matrices");
        describe(unit, false, caps->matrices_off);
    } else {
        const struct matrix m = caps->matrices[index];
        snprintf(unit->name, sizeof unit->name, "matrices %" PRIu32 "x%" PRIu32 "x%" PRIu32 " f16", m.m, m.n, m.k);
        describe(unit, caps->matrix_tested[index], caps->matrix_off[index]);
    }
    return 1;
}
