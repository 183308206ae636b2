/* Statuses and the sentence of the last error. */
#include "status.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

Test(status, names)
{
    cr_expect_str_eq(vkattn_status_name(VKATTN_OK), "VKATTN_OK");
    cr_expect_str_eq(vkattn_status_name(VKATTN_INVALID), "VKATTN_INVALID");
    cr_expect_str_eq(vkattn_status_name(VKATTN_UNSUPPORTED), "VKATTN_UNSUPPORTED");
    cr_expect_str_eq(vkattn_status_name(VKATTN_NO_MEMORY), "VKATTN_NO_MEMORY");
    cr_expect_str_eq(vkattn_status_name(VKATTN_DEVICE_LOST), "VKATTN_DEVICE_LOST");
    cr_expect_str_eq(vkattn_status_name(VKATTN_FAILED), "VKATTN_FAILED");
    cr_expect(vkattn_status_name((vkattn_status)6) && vkattn_status_name((vkattn_status)-1));
}

Test(status, the_version_is_the_headers)
{
    cr_expect(vkattn_version() == VKATTN_VERSION);
}

Test(status, the_last_sentence_stays_until_the_next)
{
    cr_expect_str_eq(vkattn_last_error(), "");
    cr_expect(vkattn_error_set(VKATTN_FAILED, "first") == VKATTN_FAILED);
    const vkattn_problem fine = {.dim_qk = 1};
    cr_expect(vkattn_problem_check(&fine) == VKATTN_OK);
    cr_expect_str_eq(vkattn_last_error(), "first");
    vkattn_error_set(VKATTN_INVALID, NULL);
    cr_expect_str_eq(vkattn_last_error(), "");
}

Test(status, long_sentences_are_cut)
{
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    vkattn_error_set(VKATTN_FAILED, text);
    cr_expect(strlen(vkattn_last_error()) == 511);
}

Test(status, a_sentence_is_no_format)
{
    vkattn_error_set(VKATTN_FAILED, "%s %n 100%");
    cr_expect_str_eq(vkattn_last_error(), "%s %n 100%");
}

static void *fail_elsewhere(void *seen)
{
    *(bool *)seen = vkattn_last_error()[0] == '\0';
    vkattn_error_set(VKATTN_FAILED, "of the thread");
    return NULL;
}

Test(status, each_thread_has_its_own)
{
    pthread_t thread;
    bool empty = false;
    vkattn_error_set(VKATTN_FAILED, "of main");
    cr_assert(pthread_create(&thread, NULL, fail_elsewhere, &empty) == 0);
    cr_assert(pthread_join(thread, NULL) == 0);
    cr_expect(empty);
    cr_expect_str_eq(vkattn_last_error(), "of main");
}
