/* Silence of the validation layer counts only if it would speak: a missing barrier must be reported, through the
 * helper. */
#include "gpu.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(validation, .timeout = 60);

static bool seen;

static void on_message(void *user, const char *text)
{
    (void)user;
    seen = seen || strstr(text, "WRITE_AFTER_WRITE") || strstr(text, "WRITE-AFTER-WRITE");
}

static vkattn_status fill_twice(void *user, VkCommandBuffer cmd)
{
    const vkattn_mapped *mapped = user;
    vkCmdFillBuffer(cmd, mapped->buffer, 0, 64, 1);
    vkCmdFillBuffer(cmd, mapped->buffer, 0, 64, 2);
    return VKATTN_OK;
}

Test(validation, sees_a_missing_barrier)
{
    vkattn_context *context;
    vkattn_mapped mapped;
    gpu_ok(vkattn_open(&(vkattn_open_info){.message = on_message}, &context));
    if (!context->validating)
        cr_skip_test("VKATTN_VALIDATION is not 1");
    gpu_ok(vkattn_mapped_create(context, 64, &mapped));
    gpu_ok(vkattn_run(context, fill_twice, &mapped, NULL));
    cr_expect(seen, "two writes without a barrier between them were not reported");
    cr_expect(context->validation_messages > 0);
    vkattn_mapped_destroy(context, &mapped);
    vkattn_close(context);
}
