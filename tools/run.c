/* vkattn run: attention of .npy files on a device. */
#include "command.h"
#include "compare.h"
#include "inputs.h"
#include "npy.h"
#include "options.h"
#include "report.h"
#include "timing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vkattn/reference.h>

/* One run: what was asked for, and what it needs. */
struct run {
    const struct options *options;
    vkattn_options plan_options;
    struct inputs inputs;
    vkattn_context *context;
    vkattn_report report;
    struct npy_array expected; /* what --expect names */
};

/* ---- Outputs --------------------------------------------------------------------------------------------------- */

/* A mistyped folder should not cost the computation. */
static bool outputs_writable(const struct options *options)
{
    const char *const paths[] = {options->out, options->lse, options->weights};
    char message[NPY_MESSAGE_SIZE];
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (paths[i] && !npy_writable(paths[i], message)) {
            command_complain("%s", message);
            return false;
        }
    }
    return true;
}

static bool save(const char *path, enum npy_type type, unsigned dims, const uint64_t *shape, void *data)
{
    char message[NPY_MESSAGE_SIZE] = "an output overflows the address space";
    struct npy_array array = {.data = data};
    if (npy_set_shape(&array, type, dims, shape) && npy_write(path, &array, message))
        return true;
    command_complain("%s", message);
    return false;
}

/* O as Q was: its layout, and its number of dimensions. */
static bool save_o(const struct run *run)
{
    const vkattn_problem *p = &run->inputs.problem;
    const struct blob *blob = &run->inputs.blobs[BLOB_O];
    uint64_t shape[4];
    const unsigned dims = inputs_o_shape(&run->inputs, shape);
    if (p->o_type != VKATTN_BF16)
        return save(run->options->out, p->o_type == VKATTN_F16 ? NPY_F16 : NPY_F32, dims, shape, blob->data);

    /* NumPy has no bf16. */
    const size_t count = blob->size / 2;
    float *wide = malloc(count ? count * sizeof *wide : 1);
    for (size_t i = 0; wide && i < count; i++)
        wide[i] = vkattn_decode(VKATTN_BF16, (const char *)blob->data + 2 * i);
    if (!wide)
        command_complain("%s: no memory for %zu elements of float32", run->options->out, count);
    const bool ok = wide && save(run->options->out, NPY_F32, dims, shape, wide);
    free(wide);
    return ok;
}

static int save_outputs(const struct run *run)
{
    const vkattn_problem *p = &run->inputs.problem;
    const struct options *options = run->options;
    const uint64_t shape[4] = {p->batch, p->heads, p->len_q, p->len_kv};
    const bool ok =
        (!options->out || save_o(run)) &&
        (!options->lse || save(options->lse, NPY_F32, 3, shape, run->inputs.blobs[BLOB_LSE].data)) &&
        (!options->weights || save(options->weights, NPY_F32, 4, shape, run->inputs.blobs[BLOB_WEIGHTS].data));
    return ok ? COMMAND_OK : COMMAND_USAGE;
}

/* ---- --check --------------------------------------------------------------------------------------------------- */

/* One tensor that is compared: the reference and its bound are doubles that we allocate. */
struct checked {
    const char *name;
    struct compare_view view;
    double *reference, *bound;
};

static bool allocate_checked(struct checked *checked, const char *name, struct compare_view view)
{
    size_t size;
    const uint64_t sizes[5] = {view.shape[0], view.shape[1], view.shape[2], view.shape[3], sizeof(double)};
    *checked = (struct checked){.name = name, .view = view};
    if (inputs_product(sizes, 5, &size)) {
        checked->reference = malloc(size ? size : 1);
        checked->bound = malloc(size ? size : 1);
    }
    if (!checked->reference || !checked->bound)
        command_complain("no memory for the reference of %s", name);
    return checked->reference && checked->bound;
}

/* O, and LSE and weights where they were asked for. */
static bool allocate_all_checked(const struct run *run, struct checked checked[3])
{
    const vkattn_problem *p = &run->inputs.problem;
    const struct blob *blobs = run->inputs.blobs;
    const uint64_t o[4] = {p->batch, p->heads, p->len_q, p->dim_v};
    const uint64_t lse[4] = {p->batch, p->heads, p->len_q, 1};
    const uint64_t weights[4] = {p->batch, p->heads, p->len_q, p->len_kv};
    return allocate_checked(&checked[0], "O", compare_dense(blobs[BLOB_O].data, p->o_type, p->o.order, o)) &&
           (!blobs[BLOB_LSE].data ||
            allocate_checked(&checked[1], "LSE", compare_dense(blobs[BLOB_LSE].data, VKATTN_F32, VKATTN_BHTD, lse))) &&
           (!blobs[BLOB_WEIGHTS].data ||
            allocate_checked(&checked[2], "weights",
                             compare_dense(blobs[BLOB_WEIGHTS].data, VKATTN_F32, VKATTN_BHTD, weights)));
}

static bool print_comparison(const struct checked *checked)
{
    const struct comparison worst = compare(&checked->view, checked->reference, checked->bound);
    const bool right = compare_right(&worst);
    char where[100];
    snprintf(where, sizeof where, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, worst.index[0], worst.index[1],
             worst.index[2], worst.index[3]);
    printf("%-8s %12.3g %12.3g %12.3g %14.7g %14.7g  %-18s %s\n", checked->name, worst.error, worst.bound, worst.ratio,
           worst.value, worst.reference, where, right ? "right" : "WRONG");
    return right;
}

static int compare_all(const struct run *run, const struct checked checked[3])
{
    const vkattn_tensors tensors = inputs_tensors(&run->inputs);
    const vkattn_reference reference = {
        .o = checked[0].reference,
        .o_bound = checked[0].bound,
        .lse = checked[1].reference,
        .lse_bound = checked[1].bound,
        .weights = checked[2].reference,
        .weights_bound = checked[2].bound,
    };
    command_progress("computing the reference on the CPU ...");
    const vkattn_dtype p_type = run->report.candidates[run->report.chosen].p_type;
    const vkattn_status status = vkattn_reference_forward(&run->inputs.problem, &tensors, NULL, p_type, &reference);
    command_progress(NULL);
    if (status != VKATTN_OK)
        return command_fail(status);
    printf("%-8s %12s %12s %12s %14s %14s  %-18s\n", "check", "error", "bound", "error/bound", "value", "reference",
           "at b,h,i,element");
    bool right = true;
    for (unsigned i = 0; i < 3; i++)
        right = (!checked[i].name || print_comparison(&checked[i])) && right;
    if (!right)
        command_complain("%s on %s: the result is outside its bound", run->report.candidates[run->report.chosen].kernel,
                         run->context->listed.name);
    return right ? COMMAND_OK : COMMAND_WRONG;
}

static int check(const struct run *run)
{
    struct checked checked[3] = {0};
    const int exit_status = allocate_all_checked(run, checked) ? compare_all(run, checked) : COMMAND_REFUSED;
    for (unsigned i = 0; i < 3; i++) {
        free(checked[i].reference);
        free(checked[i].bound);
    }
    return exit_status;
}

/* ---- --expect ------------------------------------------------------------------------------------------------- */

/* The distance of two values, 0 where both are the same infinity or NaN. */
static double distance(double a, double b)
{
    return a == b || (isnan(a) && isnan(b)) ? 0 : fabs(a - b);
}

/* How near another program's output should be is for the caller to say; without a tolerance this only tells. */
static int compare_expected(const struct run *run)
{
    const vkattn_dtype type = run->inputs.problem.o_type;
    const struct npy_array *expected = &run->expected;
    const struct options *options = run->options;
    double largest = 0, sum = 0, peak = 0;
    /* Both are laid out alike. */
    for (size_t i = 0; i < expected->count; i++) {
        const char *at = (const char *)run->inputs.blobs[BLOB_O].data + i * vkattn_dtype_size(type);
        const double there = inputs_element(expected, i);
        const double difference = distance((double)vkattn_decode(type, at), there);
        sum += difference * difference;
        /* Written so that a NaN is kept. */
        largest = difference <= largest ? largest : isnan(largest) ? largest : difference;
        peak = fabs(there) > peak ? fabs(there) : peak;
    }
    const bool near = !options->tolerance_given || largest <= (double)options->tolerance;
    printf("expect: O differs from %s by at most %.3g (RMS %.3g), where values reach %.4g", options->expect, largest,
           expected->count ? sqrt(sum / (double)expected->count) : 0, peak);
    if (options->tolerance_given)
        printf("; tolerance %.3g: %s", (double)options->tolerance, near ? "right" : "WRONG");
    printf("\n");
    if (!near)
        command_complain("O differs from %s by %.3g, more than --tolerance %.3g", options->expect, largest,
                         (double)options->tolerance);
    return near ? COMMAND_OK : COMMAND_WRONG;
}

/* ---- The rest -------------------------------------------------------------------------------------------------- */

static int print_time(struct run *run)
{
    struct timing timing;
    char amount[32];
    const vkattn_status status = timing_measure(run->context, &run->inputs, &run->plan_options, &timing);
    if (status != VKATTN_OK)
        return command_fail(status);
    printf("time: %.4g ms, the median of %u runs (least %.4g ms)", timing.median * 1e3, timing.runs,
           timing.least * 1e3);
    if (timing.median > 0)
        printf("; %.4g GFLOP/s", run->report.flops / timing.median / 1e9);
    printf(" (%s)\n", command_amount(run->report.flops, "FLOP", amount));
    return COMMAND_OK;
}

/* Ask before computing, so that a refusal names every kernel's reason. */
static int choose(struct run *run)
{
    const vkattn_status status =
        vkattn_explain(run->context->vkattn, &run->inputs.problem, &run->plan_options, &run->report);
    if (status == VKATTN_OK)
        return COMMAND_OK;
    const int exit_status = command_fail(status);
    if (status == VKATTN_UNSUPPORTED)
        report_refusals(stderr, &run->report);
    return exit_status;
}

static int compute(struct run *run)
{
    const vkattn_tensors tensors = inputs_tensors(&run->inputs);
    char problem[REPORT_PROBLEM_SIZE];
    command_progress("computing on %s ...", run->context->listed.name);
    const vkattn_status status =
        vkattn_attend(run->context->vkattn, &run->inputs.problem, &run->plan_options, &tensors, NULL);
    command_progress(NULL);
    if (status != VKATTN_OK)
        return command_fail(status);
    printf("%s on %s: %s\n", run->report.candidates[run->report.chosen].kernel, run->context->listed.name,
           report_problem(&run->inputs.problem, problem));
    return COMMAND_OK;
}

static int run_on_device(struct run *run)
{
    int exit_status = choose(run);
    if (exit_status == COMMAND_OK && !inputs_allocate_outputs(&run->inputs))
        exit_status = COMMAND_REFUSED;
    if (exit_status == COMMAND_OK)
        exit_status = compute(run);
    if (exit_status == COMMAND_OK)
        exit_status = save_outputs(run);
    if (exit_status == COMMAND_OK && run->options->time)
        exit_status = print_time(run);
    if (exit_status != COMMAND_OK)
        return exit_status;
    /* Either may find the result wrong; both are printed. */
    const int expected = run->options->expect ? compare_expected(run) : COMMAND_OK;
    const int checked = run->options->check ? check(run) : COMMAND_OK;
    return checked != COMMAND_OK ? checked : expected;
}

int command_run(int argc, char **argv)
{
    struct options options;
    struct run run = {.options = &options};
    int exit_status;
    if (!options_parse(argc, argv, OPTIONS_RUN, &options, &exit_status))
        return exit_status;
    run.plan_options = (vkattn_options){.kernel = options.kernel, .access = options.access};
    vkattn_open_info info = {.device = options.device, .message = options.verbose ? command_message : NULL};
    exit_status = COMMAND_USAGE;
    if (command_read_tuning(options.tuning, &info) && inputs_load(&options, &run.inputs) &&
        outputs_writable(&options) &&
        (!options.expect || inputs_read_like_o(options.expect, &run.inputs, &run.expected)))
        exit_status = command_open(&info, options.kernel, &run.context);
    if (exit_status == COMMAND_OK)
        exit_status = run_on_device(&run);
    if (run.context)
        vkattn_close(run.context);
    command_free_tuning(&info);
    npy_free(&run.expected);
    inputs_free(&run.inputs);
    return exit_status;
}
