/* Choosing: every kernel refuses with a sentence or offers the first tile of its table that fits; the cheapest forward
 * kernel wins. */
#include "plan.h"

#include "status.h"
#include "tuning.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool refuse_access(const struct problem *p, const struct caps *caps, bool addresses, char reason[REASON_SIZE])
{
    if (addresses && !caps->addresses) {
        if (caps->addresses_off)
            snprintf(reason, REASON_SIZE, "buffer device addresses are off: %s", caps->addresses_off);
        else
            snprintf(reason, REASON_SIZE, "buffer device addresses are not enabled on this device");
        return true;
    }
    if (addresses)
        return false;
    if (!caps->descriptors) {
        snprintf(reason, REASON_SIZE, "push descriptors for %d storage buffers are not enabled on this device",
                 VKA_TENSORS + 1);
        return true;
    }
    const vkattn_lengths whole = {p->len_q, p->len_kv};
    for (int id = 0; id < TENSOR_COUNT; id++) {
        uint64_t bits = 0;
        if (!vkattn_tensor_extent(p, (enum tensor_id)id, &whole, &bits))
            bits = UINT64_MAX;
        if (bits / 32 + (bits % 32 != 0) > caps->max_range / 4) {
            snprintf(reason, REASON_SIZE,
                     "%s spans %" PRIu64 " bytes; a descriptor of this device reaches %" PRIu64
                     " (maxStorageBufferRange), and addresses were not chosen or are not enabled",
                     p->names[id], bits / 8, caps->max_range);
            return true;
        }
    }
    return false;
}

static bool fits(const struct tile *tile, const struct problem *p, const struct caps *caps)
{
    const uint32_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    return (caps->addresses || !tile->addresses) && dim <= tile->max_dim && vkattn_gives_subgroup(caps, tile);
}

/* Tiles are tried where their class, access, head width and subgroup size fit, or where the caller asks for one by
 * number. */
static bool offers(const struct tile *tile, const struct problem *p, const struct caps *caps)
{
    return (tile->classes >> caps->device_class & 1) && fits(tile, p, caps);
}

/* Some drivers leave an invocation after so many rounds of its loops, without a word. */
static bool refuse_rounds(const struct kernel *kernel, const struct problem *p, const struct caps *caps,
                          const struct tile *tile, char reason[REASON_SIZE])
{
    if (caps->max_loop_rounds == 0 || !kernel->rounds || kernel->rounds(p, tile) <= caps->max_loop_rounds)
        return false;
    snprintf(reason, REASON_SIZE, "an invocation would run %.0f rounds of its loops; this driver stops after %" PRIu32,
             kernel->rounds(p, tile), caps->max_loop_rounds);
    return true;
}

static bool refuse_tile(const struct kernel *kernel, const struct problem *p, const struct caps *caps,
                        const struct tile *tile, char reason[REASON_SIZE])
{
    return (kernel->refuse && kernel->refuse(p, caps, tile, reason)) || refuse_rounds(kernel, p, caps, tile, reason);
}

static const struct tile *take_tile(const struct kernel *kernel, const struct problem *p, const struct caps *caps,
                                    uint32_t row, vkattn_candidate *candidate)
{
    const struct tile *tile = &kernel->tiles[row - 1];
    const double cost = kernel->cost ? kernel->cost(p, caps, tile) : 0;
    candidate->reason[0] = '\0';
    candidate->cost = cost * vkattn_tuned_scale(caps->tuning, kernel, caps->addresses);
    candidate->tile = row;
    return tile;
}

/* The row that was measured to be the fastest here, whatever its class; 0: none was, or it cannot run the problem. */
static uint32_t tuned_row(const struct kernel *kernel, const struct problem *p, const struct caps *caps)
{
    char reason[REASON_SIZE];
    const uint32_t row = vkattn_tuned_tile(caps->tuning, kernel, p, caps->addresses);
    const struct tile *tile = row ? &kernel->tiles[row - 1] : NULL;
    return tile && fits(tile, p, caps) && !refuse_tile(kernel, p, caps, tile, reason) ? row : 0;
}

/* The first tile of the table that fits and is not refused: a table is in order of preference. */
static const struct tile *first_tile(const struct kernel *kernel, const struct problem *p, const struct caps *caps,
                                     uint32_t wanted, vkattn_candidate *candidate)
{
    char other_reason[REASON_SIZE];
    const uint32_t tuned = wanted ? 0 : tuned_row(kernel, p, caps);
    if (tuned)
        return take_tile(kernel, p, caps, tuned, candidate);
    snprintf(candidate->reason, REASON_SIZE,
             "no tile of its table is for this device class, head width and choice of subgroup sizes");
    bool offered = false;
    for (uint32_t row = 1; row <= kernel->tile_count; row++) {
        const struct tile *tile = &kernel->tiles[row - 1];
        if (wanted ? wanted != row : !offers(tile, p, caps))
            continue;
        if (!refuse_tile(kernel, p, caps, tile, offered ? other_reason : candidate->reason))
            return take_tile(kernel, p, caps, row, candidate);
        offered = true;
    }
    return NULL;
}

static const struct tile *consider(const struct kernel *kernel, const struct problem *p, const struct caps *caps,
                                   const vkattn_options *options, bool addresses, vkattn_candidate *candidate)
{
    const bool forced = options->kernel != NULL && strcmp(options->kernel, kernel->name) == 0;
    candidate->kernel = kernel->name;
    candidate->p_type = kernel->p_type;
    candidate->access = addresses ? VKATTN_ACCESS_ADDRESS : VKATTN_ACCESS_DESCRIPTOR;
    if (kernel->spirv[addresses].missing) {
        snprintf(candidate->reason, REASON_SIZE, "not in this build: %s", kernel->spirv[addresses].missing);
        return NULL;
    }
    if (refuse_access(p, caps, addresses, candidate->reason))
        return NULL;
    return first_tile(kernel, p, caps, forced ? options->tile : 0, candidate);
}

static void fill_step(struct step *step, const struct kernel *kernel, const struct problem *p, const struct caps *caps,
                      const struct tile *tile)
{
    step->kernel = kernel;
    step->tile = tile;
    for (int id = 0; id < VKA_IDS; id++)
        step->constants[id] = VKA_FROM_PARAMS;
    kernel->constants(p, caps, tile, step->constants);
    step->group_rows = kernel->group_rows(p, tile);
}

static vkattn_status check_options(const vkattn_options *options)
{
    const struct kernel *forced = NULL;
    for (uint32_t i = 0; options->kernel && i < vkattn_kernel_count; i++)
        if (vkattn_kernels[i]->role == ROLE_FORWARD && strcmp(options->kernel, vkattn_kernels[i]->name) == 0)
            forced = vkattn_kernels[i];
    REQUIRE(!options->kernel || forced, "options.kernel is \"%s\": no forward kernel has this name", options->kernel);
    REQUIRE(!options->tile || forced, "options.tile is %" PRIu32 " without options.kernel", options->tile);
    REQUIRE(!options->tile || options->tile <= forced->tile_count,
            "options.tile is %" PRIu32 ": %s has %" PRIu32 " tiles", options->tile, options->kernel,
            forced ? forced->tile_count : 0);
    REQUIRE(options->parts <= VKATTN_MAX_PARTS, "options.parts is %" PRIu32 ": must be at most %u", options->parts,
            VKATTN_MAX_PARTS);
    REQUIRE((int)options->access >= 0 && options->access <= VKATTN_ACCESS_DESCRIPTOR,
            "options.access is %d: not a value of its enum", (int)options->access);
    return VKATTN_OK;
}

static void fill_report(const struct problem *p, vkattn_report *report)
{
    const double heads = (double)p->batch * p->heads, kv_heads = (double)p->batch * p->kv_heads;
    const double square = (double)p->len_q * p->len_kv;
    report->flops = 2 * heads * vkattn_pairs(p) * (p->dim_qk + p->dim_v);
    report->score_bytes = 4 * heads * square;
    report->bytes_moved =
        heads * p->len_q * (p->dim_qk * p->tensors[TENSOR_Q].bits + p->dim_v * p->tensors[TENSOR_O].bits) / 8 +
        kv_heads * p->len_kv * (p->dim_qk + p->dim_v) * p->tensors[TENSOR_K].bits / 8;
    for (int id = TENSOR_LSE; id < TENSOR_COUNT; id++) {
        const struct tensor *t = &p->tensors[id];
        if (t->used)
            report->bytes_moved += (t->batch_stride ? p->batch : 1.0) * (t->head_stride ? t->heads : 1.0) *
                                   (t->row_stride ? (double)t->rows : 1.0) * t->row_width * t->bits / 8;
    }
}

static void describe_tile(const struct tile *tile, char text[], size_t size)
{
    if (tile->subgroups)
        snprintf(text, size,
                 "%" PRIu32 " subgroups, matrices of %" PRIu32 "x%" PRIu32 "x%" PRIu32 ", %" PRIu32 " keys a step",
                 tile->subgroups, tile->matrix.m, tile->matrix.n, tile->matrix.k, tile->keys);
    else
        snprintf(text, size,
                 "%" PRIu32 " invocations, %" PRIu32 " rows each, %" PRIu32 " keys a step, head over %" PRIu32
                 " subgroups",
                 tile->workgroup, tile->rows, tile->keys, tile->split);
}

static bool prefer_addresses(const struct caps *caps, const vkattn_options *options)
{
    return options->access == VKATTN_ACCESS_AUTO ? caps->addresses : options->access == VKATTN_ACCESS_ADDRESS;
}

/* Elements from row to row of the library's own tensors: whole vec4. */
static uint64_t own_stride(uint32_t width)
{
    return (width + UINT64_C(3)) / 4 * 4;
}

/* A tensor of the library's own in the workspace; VKATTN_UNSUPPORTED when a descriptor cannot reach all of it. */
static vkattn_status add_workspace(struct plan *plan, const struct caps *caps, enum tensor_id id, struct tensor t)
{
    const uint64_t bytes = vkattn_problem_add_own(&plan->problem, id, t);
    if (!plan->addresses && bytes > caps->max_range)
        return vkattn_fail(VKATTN_UNSUPPORTED,
                           "%s, which the kernel needs in the workspace, takes %" PRIu64
                           " bytes; a descriptor of this device reaches %" PRIu64,
                           plan->problem.names[id], bytes, caps->max_range);
    plan->workspace_offset[id] = plan->workspace_size;
    const uint64_t alignment = vkattn_workspace_alignment(caps);
    plan->workspace_size += (bytes + alignment - 1) / alignment * alignment;
    return VKATTN_OK;
}

/* Add the kernel of a role; VKATTN_UNSUPPORTED with its reason when it refuses. */
static vkattn_status chain(struct plan *plan, const struct caps *caps, enum role role)
{
    const struct kernel *const *kernel = vkattn_kernels;
    vkattn_candidate candidate;
    while ((*kernel)->role != role)
        kernel++;
    const struct tile *tile = first_tile(*kernel, &plan->problem, caps, 0, &candidate);
    if (tile == NULL)
        return vkattn_fail(VKATTN_UNSUPPORTED, "%s: %s", (*kernel)->name, candidate.reason);
    fill_step(&plan->steps[plan->step_count++], *kernel, &plan->problem, caps, tile);
    return VKATTN_OK;
}

/* The first kernel of the catalogue that reads elements one by one; where it refuses, such a call is refused. */
static void choose_mid_word(struct plan *plan, const struct caps *caps)
{
    const struct kernel *const *kernel = vkattn_kernels;
    vkattn_candidate candidate;
    while ((*kernel)->role != ROLE_FORWARD || (*kernel)->needs_words)
        kernel++;
    const struct tile *tile = first_tile(*kernel, &plan->problem, caps, 0, &candidate);
    if (tile != NULL)
        fill_step(&plan->mid_word, *kernel, &plan->problem, caps, tile);
}

static vkattn_status chain_unpack(struct plan *plan, const struct caps *caps)
{
    const struct problem *p = &plan->problem;
    const struct tensor k = {
        .heads = p->kv_heads, .rows = p->len_kv, .row_width = p->dim_qk, .row_stride = own_stride(p->dim_qk)};
    const struct tensor v = {
        .heads = p->kv_heads, .rows = p->len_kv, .row_width = p->dim_v, .row_stride = own_stride(p->dim_v)};
    TRY(add_workspace(plan, caps, TENSOR_K_COPY, k));
    TRY(add_workspace(plan, caps, TENSOR_V_COPY, v));
    return chain(plan, caps, ROLE_UNPACK);
}

static vkattn_status add_sums(struct plan *plan, const struct caps *caps)
{
    const struct problem *p = &plan->problem;
    const struct tensor sums = {
        .heads = p->heads, .rows = p->len_q, .row_width = p->dim_v, .row_stride = own_stride(p->dim_v), .output = true};
    return add_workspace(plan, caps, TENSOR_SUMS, sums);
}

/* What each part leaves of each row; all tensors of a kernel that cuts keys but these are the caller's. */
static vkattn_status chain_combine(struct plan *plan, const struct caps *caps)
{
    const struct problem *p = &plan->problem;
    const uint64_t rows = (uint64_t)p->len_q * plan->parts;
    const struct tensor sums = {
        .heads = p->heads, .rows = rows, .row_width = p->dim_v, .row_stride = own_stride(p->dim_v), .output = true};
    const struct tensor stats = {.heads = p->heads, .rows = rows, .row_width = 4, .row_stride = 4, .output = true};
    TRY(add_workspace(plan, caps, TENSOR_PARTS, sums));
    TRY(add_workspace(plan, caps, TENSOR_STATS, stats));
    return chain(plan, caps, ROLE_COMBINE);
}

static vkattn_status chain_weights(struct plan *plan, const struct caps *caps)
{
    const struct problem *p = &plan->problem;
    const struct tensor lse = {.heads = p->heads, .rows = p->len_q, .row_width = 1, .row_stride = 1, .output = true};
    if (!p->tensors[TENSOR_LSE].used)
        TRY(add_workspace(plan, caps, TENSOR_LSE, lse));
    return chain(plan, caps, ROLE_WEIGHTS);
}

/* Whether a step cannot read K or V that start in mid-word. */
static bool needs_words(const struct step *step)
{
    const uint32_t shifted = step->constants[VKA_ID_SHIFTED];
    return step->kernel->needs_words && (shifted == 0 || shifted == VKA_FROM_PARAMS);
}

/* What comes before and behind the forward step. */
static vkattn_status chain_steps(struct plan *plan, const struct caps *caps, const struct step *forward)
{
    const struct kernel *kernel = forward->kernel;
    if (kernel->unpack && kernel->unpack(&plan->problem, caps, forward->tile))
        TRY(chain_unpack(plan, caps));
    else
        plan->needs_words = needs_words(forward) && plan->problem.kv_type != VKATTN_F32;
    if (plan->needs_words)
        choose_mid_word(plan, caps);
    const bool folds = forward->constants[VKA_ID_FOLD] != 0 && forward->constants[VKA_ID_FOLD] != VKA_FROM_PARAMS;
    if (folds && !kernel->parts) /* parts are folded where they lie */
        TRY(add_sums(plan, caps));
    plan->steps[plan->step_count++] = *forward;
    if (kernel->parts)
        TRY(chain_combine(plan, caps));
    return plan->problem.flags & VKATTN_WRITE_WEIGHTS ? chain_weights(plan, caps) : VKATTN_OK;
}

/* Makes `plan`, which has no steps yet, that of the cheapest forward kernel that may run, with its chained steps. */
static void choose_forward(struct plan *plan, const struct caps *caps, const vkattn_options *options,
                           vkattn_report *report)
{
    const struct plan empty = *plan;
    for (uint32_t i = 0; i < vkattn_kernel_count; i++) {
        const struct kernel *kernel = vkattn_kernels[i];
        if (kernel->role != ROLE_FORWARD)
            continue;
        const int32_t index = (int32_t)report->candidate_count++;
        vkattn_candidate *candidate = &report->candidates[index];
        memset(candidate, 0, sizeof *candidate);
        const struct tile *tile = consider(kernel, &empty.problem, caps, options, empty.addresses, candidate);
        if (tile == NULL)
            continue;
        struct plan whole = empty;
        struct step forward;
        fill_step(&forward, kernel, &empty.problem, caps, tile);
        whole.parts = kernel->parts ? kernel->parts(&whole.problem, caps, tile) : 1;
        if (chain_steps(&whole, caps, &forward) != VKATTN_OK) {
            snprintf(candidate->reason, REASON_SIZE, "%s", vkattn_last_error());
            candidate->tile = 0;
            candidate->cost = 0;
            continue;
        }
        const bool allowed = !options->kernel || strcmp(options->kernel, kernel->name) == 0;
        const bool cheaper = report->chosen < 0 || candidate->cost < report->candidates[report->chosen].cost;
        if (!allowed || !cheaper)
            continue;
        report->chosen = index;
        *plan = whole;
    }
}

static vkattn_status no_kernel(const vkattn_options *options, const vkattn_report *report)
{
    const vkattn_candidate *shown = &report->candidates[0];
    for (uint32_t i = 0; options->kernel && i < report->candidate_count; i++)
        if (strcmp(report->candidates[i].kernel, options->kernel) == 0)
            shown = &report->candidates[i];
    return vkattn_fail(VKATTN_UNSUPPORTED, "%s: %s", shown->kernel, shown->reason);
}

vkattn_status vkattn_plan_choose(const struct problem *problem, const struct caps *caps, const vkattn_options *options,
                                 struct plan *plan, vkattn_report *report)
{
    vkattn_report unused;
    report = report ? report : &unused;
    memset(report, 0, sizeof *report);
    report->chosen = -1;
    static const vkattn_options none = {0};
    options = options ? options : &none;
    TRY(check_options(options));

    memset(plan, 0, sizeof *plan);
    plan->problem = *problem;
    plan->problem.mid_word_starts = options->mid_word_starts != 0;
    plan->problem.parts = options->parts;
    plan->addresses = prefer_addresses(caps, options);
    /* From here on caps->addresses says that this plan reaches tensors by address. */
    struct caps used = *caps;
    used.addresses = caps->addresses && plan->addresses;
    plan->workspace_size = PARAMS_SIZE;
    plan->max_work = options->max_work;
    choose_forward(plan, &used, options, report);
    fill_report(problem, report);
    if (report->chosen < 0)
        return no_kernel(options, report);
    report->step_count = plan->step_count;
    report->workspace_size = plan->workspace_size;
    describe_tile(vkattn_forward_step(plan)->tile, report->tile, sizeof report->tile);
    return VKATTN_OK;
}

vkattn_status vkattn_plan_merge(const struct problem *problem, const struct caps *caps, const vkattn_options *options,
                                struct plan *plan)
{
    REQUIRE(!options->kernel && !options->tile && !options->parts && !options->mid_word_starts,
            "options: kernel, tile, parts and mid_word_starts must be 0 in a merge");
    TRY(check_options(options));
    char reason[REASON_SIZE];
    memset(plan, 0, sizeof *plan);
    plan->problem = *problem;
    plan->parts = 1;
    plan->addresses = prefer_addresses(caps, options);
    plan->workspace_size = PARAMS_SIZE;
    plan->max_work = options->max_work;
    if (refuse_access(&plan->problem, caps, plan->addresses, reason))
        return vkattn_fail(VKATTN_UNSUPPORTED, "%s", reason);
    return chain(plan, caps, ROLE_MERGE);
}

void vkattn_plan_params(const struct plan *plan, const vkattn_lengths *lengths, vka_params *params)
{
    const struct problem *p = &plan->problem;
    *params = (vka_params){
        .batch = p->batch,
        .heads = p->heads,
        .group = p->group,
        .len_q = lengths->len_q,
        .len_kv = lengths->len_kv,
        .dim_qk = p->dim_qk,
        .dim_v = p->dim_v,
        .q_type = (uint32_t)p->q_type,
        .kv_type = (uint32_t)p->kv_type,
        .o_type = (uint32_t)p->o_type,
        .bias_type = p->flags & VKATTN_BIAS ? (uint32_t)p->bias_type : VKA_TYPE_NONE,
        .mask_kind = (uint32_t)p->mask_kind,
        .features = vkattn_features(p),
        .left = p->left,
        .right = p->right,
        .scale = p->scale,
        .softcap = p->softcap,
        .parts = plan->parts,
    };
    for (int id = 0; id < TENSOR_COUNT; id++) {
        const struct tensor *t = &p->tensors[id];
        params->tensors[id].batch_stride = t->batch_stride;
        params->tensors[id].head_stride = t->head_stride;
        params->tensors[id].row_stride = (uint32_t)t->row_stride;
    }
}

uint64_t vkattn_step_blocks(const struct plan *plan, const struct step *step, const vkattn_lengths *lengths)
{
    const enum work work = step->kernel->work;
    const uint64_t rows = work == WORK_KEYS     ? lengths->len_kv
                          : work == WORK_PACKED ? (uint64_t)lengths->len_q * plan->problem.group
                                                : lengths->len_q;
    const uint64_t blocks = rows / step->group_rows + (rows % step->group_rows != 0);
    return work == WORK_PACKED ? blocks * plan->parts : blocks;
}

uint64_t vkattn_step_groups(const struct plan *plan, const struct step *step, const vkattn_lengths *lengths)
{
    const struct problem *p = &plan->problem;
    const uint64_t heads = (uint64_t)p->batch * (step->kernel->work == WORK_QUERIES ? p->heads : p->kv_heads);
    const uint64_t blocks = vkattn_step_blocks(plan, step, lengths);
    return blocks != 0 && heads > UINT64_MAX / blocks ? UINT64_MAX : heads * blocks;
}

uint32_t vkattn_workspace_alignment(const struct caps *caps)
{
    return caps->offset_alignment > 16 ? caps->offset_alignment : 16;
}

const struct step *vkattn_forward_step(const struct plan *plan)
{
    const struct step *step = plan->steps;
    while (step->kernel->role != ROLE_FORWARD && step->kernel->role != ROLE_MERGE)
        step++;
    return step;
}
