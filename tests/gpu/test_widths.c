/* Every width in steps of 8 has a pipeline of the fast kernel (CASES 20: a compiler that crashes on some), and the
 * widths that run are right. */
#include "gpu.h"

#include <criterion/criterion.h>
#include <stdio.h>

TestSuite(widths, .timeout = 900);

/* A CPU driver keeps some 10 MB for each pipeline: after so many the device is made anew. */
enum { STEP = 8, WIDEST = 576, RUN_EVERY = 96, PIPELINES = 24 };

/* CASES 20 came with 1024 keys or more. */
static vkattn_problem problem_of(uint32_t dim)
{
    return (vkattn_problem){.len_q = 3, .len_kv = 1024, .dim_qk = dim, .flags = VKATTN_WRITE_LSE};
}

static void run(vkattn_device *device, const vkattn_problem *problem, const vkattn_options *options)
{
    char what[40];
    struct gpu_case c = gpu_case_make(problem);
    const vkattn_tensors tensors = gpu_case_tensors(&c);
    snprintf(what, sizeof what, "d = %u", problem->dim_qk);
    gpu_ok(vkattn_attend(device, problem, options, &tensors, NULL));
    gpu_case_expect(&c, NULL, what);
    gpu_case_free(&c);
}

/* How many widths have a plan; what has none is refused with a sentence. */
static uint32_t create_all(uint32_t limits)
{
    const vkattn_options options = {.kernel = "fwd_tile"};
    vkattn_context *context = gpu_open(limits);
    uint32_t created = 0;
    for (uint32_t dim = STEP; dim <= WIDEST; dim += STEP) {
        const vkattn_problem p = problem_of(dim);
        vkattn_plan *plan;
        const vkattn_status status = vkattn_plan_create(context->vkattn, &p, &options, &plan);
        if (status == VKATTN_UNSUPPORTED) {
            gpu_expect(status, VKATTN_UNSUPPORTED, "fwd_tile");
            continue;
        }
        gpu_ok(status);
        vkattn_plan_destroy(plan);
        created++;
        if (dim % RUN_EVERY == 0)
            run(context->vkattn, &p, &options);
        if (vkattn_device_pipeline_count(context->vkattn) >= PIPELINES) {
            gpu_close(context);
            context = gpu_open(limits);
        }
    }
    gpu_close(context);
    return created;
}

Test(widths, every_width_has_a_pipeline)
{
    cr_expect(create_all(0) == WIDEST / STEP);
}

Test(widths, every_width_has_one_on_a_gpu_that_nobody_measured)
{
    cr_expect(create_all(VKATTN_LIMIT_UNKNOWN_GPU) == 256 / STEP);
}
