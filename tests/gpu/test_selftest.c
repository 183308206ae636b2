/* The self-test of devices: units that work stay on, units that do not are off and planning knows why. */
#include "gpu.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(selftest, .timeout = 300);

static const vkattn_problem half = {
    .len_q = 16, .len_kv = 16, .dim_qk = 16, .q_type = VKATTN_F16, .kv_type = VKATTN_F16, .o_type = VKATTN_F32};

/* Units of a state, of those whose name begins with `name`. */
static unsigned count(const vkattn_context *context, const char *name, vkattn_unit_state state)
{
    vkattn_unit unit;
    unsigned found = 0;
    for (uint32_t i = 0; vkattn_device_unit(context->vkattn, i, &unit); i++) {
        found += strncmp(unit.name, name, strlen(name)) == 0 && unit.state == state;
        cr_expect((unit.state == VKATTN_UNIT_OFF) == (unit.reason[0] != '\0'), "%s: \"%s\"", unit.name, unit.reason);
    }
    return found;
}

/* Shapes that no tile is for stay untested, and so does what the build has no module for. */
Test(selftest, a_driver_that_works_keeps_its_units)
{
    vkattn_context *context = gpu_open(0);
    gpu_ok(vkattn_device_selftest(context->vkattn, context->queue));
    cr_expect(count(context, "", VKATTN_UNIT_OFF) == 0);
    gpu_close(context);
}

Test(selftest, what_fails_is_off_with_a_reason)
{
    vkattn_context *context = gpu_open(VKATTN_LIMIT_FAIL_SELFTEST);
    const unsigned matrices = count(context, "matrices", VKATTN_UNIT_UNTESTED);
    const vkattn_options options = {.kernel = "fwd_coopmat"};
    vkattn_report report;
    const vkattn_status before = vkattn_explain(context->vkattn, &half, &options, &report);
    gpu_ok(vkattn_device_selftest(context->vkattn, context->queue));
    if (before != VKATTN_OK) {
        gpu_close(context);
        cr_skip_test("fwd_coopmat does not run here: %s", vkattn_last_error());
    }
    cr_expect(matrices > 0 && count(context, "matrices", VKATTN_UNIT_OFF) > 0);
    gpu_expect(vkattn_explain(context->vkattn, &half, &options, &report), VKATTN_UNSUPPORTED, "self-test");
    /* The rest goes on. */
    gpu_ok(vkattn_explain(context->vkattn, &half, NULL, &report));
    cr_expect(report.chosen >= 0 && strcmp(report.candidates[report.chosen].kernel, "fwd_coopmat") != 0);
    gpu_close(context);
}

Test(selftest, misuse_is_refused)
{
    vkattn_context *context = gpu_open(0);
    gpu_expect(vkattn_device_selftest(NULL, context->queue), VKATTN_INVALID, "device");
    gpu_expect(vkattn_device_selftest(context->vkattn, VK_NULL_HANDLE), VKATTN_INVALID, "queue");
    gpu_close(context);
}
