#include "trial.h"

#include "command.h"
#include "timing.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Guard bytes on both sides of a store. The first is also what its offset is a multiple of when it is aligned well. */
enum { MARGIN = 256, MOST_SHIFT = 128 };

static const char *const output_names[OUTPUT_COUNT] = {"O", "LSE", "weights"};

/* What the runs of one trial share. */
struct session {
    struct trial *trial;
    vkattn_plan *whole, *cut; /* cut: the same problem in small dispatches, or NULL */
    vkattn_mapped workspace;
    vkattn_buffers buffers;
    unsigned char *first[BLOB_COUNT]; /* outputs of the run that others repeat, as mapped */
    struct trial_result *result;
};

/* One of them. */
struct run {
    const char *name;
    vkattn_plan *plan;
    bool aligned;         /* tensors begin at a multiple of MARGIN bytes, not of their element only */
    const char *of;       /* the run that it repeats, bit for bit; NULL: none */
    unsigned char poison; /* of outputs, workspace and margins */
};

static bool fail(struct session *session, const char *format, ...) COMMAND_PRINTF(2, 3);

/* Keeps the sentence; false for the caller to pass on. */
static bool fail(struct session *session, const char *format, ...)
{
    struct trial_result *result = session->result;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(result->sentence, sizeof result->sentence, format, arguments);
    va_end(arguments);
    result->outcome = TRIAL_FAILED;
    return false;
}

static bool fail_with(struct session *session, const char *call, vkattn_status status)
{
    session->result->lost = status == VKATTN_DEVICE_LOST;
    return fail(session, "%s: %s: %s", call, vkattn_status_name(status), vkattn_last_error());
}

/* ---- Buffers --------------------------------------------------------------------------------------------------- */

/* Where a store begins in its buffer: an odd multiple of its element's size, or a multiple of MARGIN. */
static size_t store_offset(const struct trial_data *data, enum blob_id id, bool aligned)
{
    return MARGIN + (aligned ? 0 : data->stores[id].element * (2 * (size_t)id + 1));
}

static bool is_output(const struct trial_data *data, enum blob_id id)
{
    return data->tensors[id].output;
}

vkattn_status trial_open(vkattn_context *context, struct trial_data *data, struct trial *trial)
{
    *trial = (struct trial){.context = context, .data = data};
    for (unsigned id = 0; id < BLOB_COUNT; id++) {
        const VkDeviceSize size = (data->stores[id].size + 2 * MARGIN + MOST_SHIFT + 3) / 4 * 4;
        if (data->stores[id].size == 0)
            continue;
        const vkattn_status status = vkattn_mapped_create(context, size, &trial->mapped[id]);
        if (status != VKATTN_OK)
            return status;
    }
    return VKATTN_OK;
}

void trial_close(struct trial *trial)
{
    for (unsigned id = 0; id < BLOB_COUNT; id++)
        if (trial->mapped[id].buffer)
            vkattn_mapped_destroy(trial->context, &trial->mapped[id]);
}

/* Poison all, put the inputs in their places, and say where everything is. A tensor that the problem does not use, or
 * that is empty, has no buffer. */
static void lay_out(struct session *session, const struct run *run)
{
    const struct trial_data *data = session->trial->data;
    for (enum blob_id id = 0; id < BLOB_COUNT; id++) {
        const struct trial_store *store = &data->stores[id];
        const vkattn_mapped *mapped = &session->trial->mapped[id];
        if (store->size == 0)
            continue;
        memset(mapped->data, run->poison, mapped->size);
        if (!is_output(data, id))
            memcpy((char *)mapped->data + store_offset(data, id, run->aligned), store->bytes, store->size);
    }
    for (enum blob_id id = 0; id < BLOB_COUNT; id++) {
        const struct trial_tensor *t = &data->tensors[id];
        const size_t offset = store_offset(data, t->store, run->aligned) + (size_t)t->first * t->bits / 8;
        *timing_buffer(&session->buffers, id) =
            t->used && t->size ? (vkattn_buffer){session->trial->mapped[t->store].buffer, offset, t->size, 0}
                               : (vkattn_buffer){0};
    }
    memset(session->workspace.data, run->poison, session->workspace.size);
}

static bool make_workspace(struct session *session)
{
    const vkattn_workspace whole = vkattn_plan_workspace(session->whole);
    const VkDeviceSize alignment = whole.alignment > MARGIN ? whole.alignment : MARGIN;
    vkattn_status status =
        vkattn_mapped_create(session->trial->context, whole.size + 2 * alignment, &session->workspace);
    if (status != VKATTN_OK)
        return fail_with(session, "vkattn_mapped_create", status);
    session->buffers.workspace =
        (vkattn_buffer){.buffer = session->workspace.buffer, .offset = alignment, .size = whole.size};
    return true;
}

/* ---- What a run left behind ------------------------------------------------------------------------------------ */

static bool inputs_unchanged(struct session *session, const struct run *run, enum blob_id id)
{
    const struct trial_data *data = session->trial->data;
    const struct trial_store *store = &data->stores[id];
    const unsigned char *mapped = session->trial->mapped[id].data;
    const size_t offset = store_offset(data, id, run->aligned), size = session->trial->mapped[id].size;
    for (size_t n = 0; n < size; n++) {
        const bool inside = n >= offset && n - offset < store->size;
        if (mapped[n] != (inside ? store->bytes[n - offset] : run->poison))
            return fail(session, "%s run: byte %td of input %u was changed", run->name,
                        (ptrdiff_t)n - (ptrdiff_t)offset, (unsigned)id);
    }
    return true;
}

static bool margins_unchanged(struct session *session, const struct run *run, unsigned output)
{
    const struct trial_data *data = session->trial->data;
    const enum blob_id id = trial_outputs[output];
    const struct trial_store *store = &data->stores[id];
    const unsigned char *mapped = session->trial->mapped[id].data;
    const size_t offset = store_offset(data, id, run->aligned), size = session->trial->mapped[id].size;
    for (size_t n = 0; n < size; n++) {
        const bool inside = n >= offset && n - offset < store->size;
        if (!(inside && store->live[n - offset]) && mapped[n] != run->poison)
            return fail(session, "%s run: byte %td of %s, of %zu, is no element's and was written", run->name,
                        (ptrdiff_t)n - (ptrdiff_t)offset, output_names[output], store->size);
    }
    return true;
}

static bool workspace_unchanged(struct session *session, const struct run *run)
{
    const unsigned char *mapped = session->workspace.data;
    const size_t begin = session->buffers.workspace.offset, end = begin + session->buffers.workspace.size;
    for (size_t n = 0; n < session->workspace.size; n++)
        if ((n < begin || n >= end) && mapped[n] != run->poison)
            return fail(session, "%s run: a byte outside the workspace was written, at %td", run->name,
                        (ptrdiff_t)n - (ptrdiff_t)begin);
    return true;
}

static bool bits_equal(struct session *session, const struct run *run, unsigned output)
{
    const enum blob_id id = trial_outputs[output];
    const struct trial_data *data = session->trial->data;
    const size_t offset = store_offset(data, id, run->aligned);
    const unsigned char *now = (const unsigned char *)session->trial->mapped[id].data + offset;
    for (size_t n = 0; n < data->stores[id].size; n++)
        if (data->stores[id].live[n] && now[n] != session->first[id][n + offset])
            return fail(session, "%s run: byte %zu of %s differs from the %s run's%s", run->name, n,
                        output_names[output], run->of, session->cut ? "; this one is cut into small dispatches" : "");
    return true;
}

static bool within_bounds(struct session *session, const struct run *run, unsigned output)
{
    const struct trial_data *data = session->trial->data;
    struct trial_result *result = session->result;
    const enum blob_id id = trial_outputs[output];
    const char *bytes = (const char *)session->trial->mapped[id].data + store_offset(data, id, run->aligned);
    const struct compare_view view = trial_data_view(data, output, bytes);
    const struct comparison worst = compare(&view, data->reference[output], data->bound[output]);
    if (worst.ratio > result->ratio || !result->output) {
        result->ratio = worst.ratio;
        result->output = output_names[output];
        memcpy(result->index, worst.index, sizeof result->index);
    }
    if (compare_right(&worst))
        return true;
    return fail(session,
                "%s run: %s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                "] is %.9g, expected %.9g: error %.3g, bound %.3g, ratio %.3g",
                run->name, output_names[output], worst.index[0], worst.index[1], worst.index[2], worst.index[3],
                worst.value, worst.reference, worst.error, worst.bound, worst.ratio);
}

static bool judge(struct session *session, const struct run *run)
{
    const struct trial_data *data = session->trial->data;
    for (unsigned n = 0; n < OUTPUT_COUNT; n++) {
        if (data->stores[trial_outputs[n]].size == 0)
            continue;
        if (!within_bounds(session, run, n) || !margins_unchanged(session, run, n) ||
            (run->of && !bits_equal(session, run, n)))
            return false;
    }
    for (enum blob_id id = 0; id < BLOB_COUNT; id++)
        if (data->stores[id].size && !is_output(data, id) && !inputs_unchanged(session, run, id))
            return false;
    return workspace_unchanged(session, run);
}

/* ---- Runs ------------------------------------------------------------------------------------------------------ */

struct recording {
    const struct session *session;
    const struct run *run;
};

static vkattn_status record(void *user, VkCommandBuffer cmd)
{
    const struct recording *r = user;
    const struct trial_data *data = r->session->trial->data;
    return vkattn_record(r->run->plan, cmd, &r->session->buffers, data->of->shortened ? &data->lengths : NULL);
}

static bool run_once(struct session *session, const struct run *run)
{
    struct recording recording = {session, run};
    lay_out(session, run);
    const vkattn_status status = vkattn_run(session->trial->context, record, &recording, NULL);
    return status == VKATTN_OK ? judge(session, run) : fail_with(session, "vkattn_record or vkattn_run", status);
}

static bool keep_outputs(struct session *session)
{
    for (unsigned n = 0; n < OUTPUT_COUNT; n++) {
        const enum blob_id id = trial_outputs[n];
        const vkattn_mapped *mapped = &session->trial->mapped[id];
        if (session->trial->data->stores[id].size == 0)
            continue;
        if (!session->first[id])
            session->first[id] = malloc(mapped->size);
        if (!session->first[id])
            return fail(session, "no host memory for a second copy of the outputs");
        memcpy(session->first[id], mapped->data, mapped->size);
    }
    return true;
}

static bool run_times(struct session *session, const struct run *run, uint32_t times)
{
    for (uint32_t n = 0; n < times; n++)
        if (!run_once(session, run))
            return false;
    return true;
}

/* Poison differs between runs, so that an element that was not written differs, too. 16-bit K and V that are aligned to
 * their element only may get another kernel than aligned ones (vkattn_plan_kernel), so each of them is repeated. */
static bool run_all(struct session *session)
{
    const struct check_problem *of = session->trial->data->of;
    vkattn_plan *const cut = session->cut ? session->cut : session->whole;
    const struct run first = {.name = "first", .plan = session->whole, .poison = 0xff};
    const struct run again = {.name = "second", .plan = cut, .of = "first", .poison = 0x5a};
    const struct run aligned = {.name = "aligned", .plan = session->whole, .aligned = true, .poison = 0xc3};
    const struct run aligned_again = {
        .name = "second aligned", .plan = cut, .aligned = true, .of = "aligned", .poison = 0x96};
    const uint32_t repeats = of->repeats ? of->repeats : 1;
    if (of->once)
        return run_once(session, &first);
    if (!run_once(session, &first) || !keep_outputs(session) || !run_times(session, &again, repeats) ||
        !run_once(session, &aligned))
        return false;
    return of->problem.kv_type == VKATTN_F32 || (keep_outputs(session) && run_times(session, &aligned_again, repeats));
}

static bool make_plan(struct session *session, const vkattn_options *options, vkattn_plan **plan)
{
    const struct trial_data *data = session->trial->data;
    const vkattn_status status = vkattn_plan_create(session->trial->context->vkattn, &data->of->problem, options, plan);
    if (status == VKATTN_OK)
        return true;
    fail_with(session, "vkattn_plan_create", status);
    if (status == VKATTN_UNSUPPORTED) {
        session->result->outcome = TRIAL_SKIPPED;
        snprintf(session->result->sentence, sizeof session->result->sentence, "%s", vkattn_last_error());
    }
    return false;
}

static bool make_plans(struct session *session, const vkattn_options *options)
{
    vkattn_options cut = *options;
    cut.max_work = session->trial->data->of->max_work;
    return make_plan(session, options, &session->whole) && (!cut.max_work || make_plan(session, &cut, &session->cut));
}

/* The bounds are those of the kernel that runs. */
static bool set_bounds(struct session *session, const vkattn_options *options)
{
    struct trial *trial = session->trial;
    vkattn_report report;
    vkattn_status status = vkattn_explain(trial->context->vkattn, &trial->data->of->problem, options, &report);
    if (status == VKATTN_OK)
        status = trial_data_round_p(trial->data, report.candidates[report.chosen].p_type);
    return status == VKATTN_OK || fail_with(session, "vkattn_reference_forward", status);
}

void trial_run(struct trial *trial, const vkattn_options *options, struct trial_result *result)
{
    struct session session = {.trial = trial, .result = result};
    const uint32_t messages = trial->context->validation_messages;
    *result = (struct trial_result){.outcome = TRIAL_PASSED};
    if (make_plans(&session, options) && set_bounds(&session, options) && make_workspace(&session))
        run_all(&session);
    if (trial->context->validation_messages != messages && result->outcome == TRIAL_PASSED)
        fail(&session, "the validation layer complained");
    if (session.workspace.buffer)
        vkattn_mapped_destroy(trial->context, &session.workspace);
    for (unsigned id = 0; id < BLOB_COUNT; id++)
        free(session.first[id]);
    vkattn_plan_destroy(session.cut);
    vkattn_plan_destroy(session.whole);
}
