/* Parts of the command that need no device: option parsing, comparison with the reference, JSON. */
#define _DEFAULT_SOURCE /* mkdtemp, symlink */

#include "command.h"
#include "compare.h"
#include "json.h"
#include "options.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A device of no driver, so that the test needs no Vulkan loader. It has two kernels. */
static vkattn_context pretended;
static unsigned opened, closed;

vkattn_status vkattn_open(const vkattn_open_info *info, vkattn_context **context)
{
    (void)info;
    opened++;
    *context = &pretended;
    return VKATTN_OK;
}

void vkattn_close(vkattn_context *context)
{
    cr_assert_eq(context, &pretended);
    closed++;
}

vkattn_status vkattn_explain_sized(const vkattn_device *device, const vkattn_problem *problem, size_t problem_size,
                                   const vkattn_options *options, size_t options_size, vkattn_report *report,
                                   size_t report_size)
{
    (void)device, (void)problem, (void)problem_size, (void)options, (void)options_size, (void)report_size;
    *report = (vkattn_report){.candidates = {{.kernel = "fwd_one"}, {.kernel = "fwd_two"}}, .candidate_count = 2};
    return VKATTN_OK;
}

/* ---- Numbers --------------------------------------------------------------------------------------------------- */

Test(command, floats_are_parsed_strictly)
{
    static const char *const bad[] = {"",     " 1",   "1 ",    "1x",    "x",   "nan", "-nan", "inf",
                                      "-inf", "1e39", "-1e39", "1e-60", "1,5", "1e",  "0x",   "infinity"};
    float value = 7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(command_parse_float(bad[i], &value), "'%s'", bad[i]);
    cr_assert_eq(value, 7.0f);
    cr_assert(command_parse_float("-0.125", &value));
    cr_assert_eq(value, -0.125f);
    cr_assert(command_parse_float("1e-3", &value));
    cr_assert(command_parse_float("0", &value));
    cr_assert_eq(value, 0.0f);
}

Test(command, integers_are_parsed_strictly)
{
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "1x",
                                      "+1",
                                      "-",
                                      "--1",
                                      "1.0",
                                      "0x1",
                                      "1,",
                                      "11",
                                      "-2",
                                      "99999999999999999999",
                                      "-99999999999999999999"};
    int64_t value = 7, values[3];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(command_parse_integer(bad[i], -1, 10, &value), "'%s'", bad[i]);
    cr_assert_eq(value, 7);
    cr_assert(command_parse_integer("-1", -1, 10, &value));
    cr_assert(command_parse_integers("1,-1,10", -1, 10, 3, values));
    cr_assert_eq(values[2], 10);
    cr_assert_not(command_parse_integers("1,2", -1, 10, 3, values));
    cr_assert_not(command_parse_integers("1,2,3,4", -1, 10, 3, values));
    cr_assert_not(command_parse_integers("1,,3", -1, 10, 3, values));
}

Test(command, amounts)
{
    char text[32];
    cr_assert_str_eq(command_amount(0, "B", text), "0 B");
    cr_assert_str_eq(command_amount(999, "B", text), "999 B");
    cr_assert_str_eq(command_amount(999.9, "B", text), "1 kB");
    cr_assert_str_eq(command_amount(2.5e9, "FLOP", text), "2.5 GFLOP");
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

#define QKV "--q", "q", "--k", "k", "--v", "v"

/* Parse words; up to 16. */
static bool parse(unsigned command, struct options *options, const char *const words[])
{
    static char copies[20][32];
    char *argv[20];
    int argc = 0, exit_status;
    strcpy(copies[0], "vkattn test");
    argv[argc++] = copies[0];
    for (; words[argc - 1]; argc++) {
        snprintf(copies[argc], sizeof copies[argc], "%s", words[argc - 1]);
        argv[argc] = copies[argc];
    }
    argv[argc] = NULL;
    const bool ok = options_parse(argc, argv, command, options, &exit_status);
    cr_assert(ok || exit_status == COMMAND_USAGE);
    return ok;
}

#define PARSE(command, options, ...) parse(command, options, (const char *const[]){__VA_ARGS__, NULL})

Test(command, options_of_a_run)
{
    struct options options;
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV, "--window", "-1,3", "--scale=-2", "--layout", "bthd", "--check"));
    cr_assert_str_eq(options.k, "k");
    cr_assert_eq(options.left, -1);
    cr_assert_eq(options.right, 3);
    cr_assert_eq(options.scale, -2.0f);
    cr_assert_eq(options.layout, VKATTN_BTHD);
    cr_assert(options.check);
    cr_assert_not(options.time);
}

Test(command, options_that_are_refused)
{
    struct options options;
    cr_assert_not(PARSE(OPTIONS_RUN, &options, "--q", "q", "--k", "k"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--scale", "0"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--softcap", "-1"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--window", "-2,0"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--causal", "left"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--q-segments", "s"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--out", "x", "--weights", "x"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "extra"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--shape", "1,1,1,1,1,1,1"));
    cr_assert_not(PARSE(OPTIONS_EXPLAIN, &options, QKV, "--shape", "1,1,1,1,1,1,1"));
    cr_assert_not(PARSE(OPTIONS_EXPLAIN, &options, QKV, "--type", "f16"));
    cr_assert_not(PARSE(OPTIONS_EXPLAIN, &options, "--shape", "1,1,1,1,1,1,0"));
    cr_assert(PARSE(OPTIONS_EXPLAIN, &options, "--shape", "1,1,1,0,0,1,1", "--type", "bf16"));
}

Test(command, shapes_that_no_problem_has)
{
    static const char *const bad[] = {"0,1,1,1,1,1,1",   "1,0,1,1,1,1,1",         "1,1,0,1,1,1,1",
                                      "1,3,2,1,1,1,1",   "1,1,2,1,1,1,1",         "1,1,1,1,1,0,1",
                                      "1,1,1,1,1,577,1", "1,1,1,1,1,1,577",       "1,1,1,-1,1,1,1",
                                      "1,1,1,1,1,1",     "1,1,1,536870912,1,1,1", "1,1,1,1,536870912,1,1"};
    struct options options;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(PARSE(OPTIONS_EXPLAIN, &options, "--shape", bad[i]), "%s", bad[i]);
    cr_assert(PARSE(OPTIONS_EXPLAIN, &options, "--shape", "2,4,2,536870911,0,576,1"));
    cr_assert_eq(options.shape[SHAPE_TQ], 536870911u);
}

/* What says how to read something that is not there. */
Test(command, options_that_need_another)
{
    struct options options;
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--lse-base", "2"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--lse-base", "2", "--weights", "w"));
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV, "--lse-base", "2", "--lse", "l"));
    cr_assert(options.lse_base_2);
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--mask-true", "ignore"));
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV, "--mask-true", "ignore", "--mask", "m"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--tolerance", "0.1"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--expect", "e", "--tolerance", "-0.1"));
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV, "--expect", "e", "--tolerance", "0"));
    cr_assert(options.tolerance_given);
}

Test(command, explain_takes_the_options_of_run)
{
    struct options options;
    cr_assert(PARSE(OPTIONS_EXPLAIN, &options, QKV, "--out", "o", "--check", "--time", "--expect", "e"));
    cr_assert(PARSE(OPTIONS_EXPLAIN, &options, QKV, "--expect", "e", "--tolerance", "1", "--json"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--json"));
}

Test(command, a_refusal_names_the_option, .init = cr_redirect_stderr)
{
    struct options options;
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--lse-base", "2"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--out", "x", "--lse", "./x"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--out", "./q"));
    fflush(stderr);
    cr_assert_stderr_eq_str("vkattn: option --lse-base goes with --lse, which is missing\n"
                            "vkattn: options --out and --lse name the same file x\n"
                            "vkattn: options --out and --q name the same file ./q\n");
}

Test(command, an_output_is_no_other_file)
{
    struct options options;
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--weights", "x", "--lse", ".//x"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--out", "x", "--expect", "x"));
    cr_assert_not(PARSE(OPTIONS_EXPLAIN, &options, QKV, "--out", "v"));
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV, "--out", "x", "--lse", "y", "--weights", "./z"));
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV, "--out", "/dev/null", "--lse", "/dev/null"));
    cr_assert(PARSE(OPTIONS_RUN, &options, "--q", "x", "--k", "x", "--v", "x"), "inputs may be the same");
}

Test(command, paths_of_one_file)
{
    char folder[] = "/tmp/vkattn-command-XXXXXX", a[64], b[64], link[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(a, sizeof a, "%s/a", folder);
    snprintf(b, sizeof b, "%s/../%s/a", folder, strrchr(folder, '/') + 1);
    snprintf(link, sizeof link, "%s/link", folder);
    cr_assert(command_same_file(a, b), "neither is there yet");
    cr_assert_not(command_same_file(a, link));
    FILE *file = fopen(a, "w");
    cr_assert(file && fclose(file) == 0 && symlink(a, link) == 0);
    cr_assert(command_same_file(a, b));
    cr_assert(command_same_file(a, link));
    cr_assert_not(command_same_file(a, "/dev/null"));
    cr_assert_not(command_same_file("/nowhere/a", "/nowhere/a"), "such a folder fails by itself");
    cr_assert(remove(link) == 0 && remove(a) == 0 && rmdir(folder) == 0);
}

/* ---- The device ------------------------------------------------------------------------------------------------ */

Test(command, opening_checks_device_and_kernel, .init = cr_redirect_stderr)
{
    vkattn_context *context;
    cr_assert_eq(command_open(&(vkattn_open_info){0}, "fwd_two", &context), COMMAND_OK);
    cr_assert_eq(context, &pretended);
    cr_assert_eq(command_open(&(vkattn_open_info){0}, NULL, &context), COMMAND_OK);
    cr_assert_eq(closed, 0u);
    cr_assert_eq(command_open(&(vkattn_open_info){0}, "nosuch", &context), COMMAND_USAGE);
    cr_assert_eq(closed, 1u);
    cr_assert_null(context);
    cr_assert_eq(command_open(&(vkattn_open_info){.device = ""}, NULL, &context), COMMAND_USAGE);
    cr_assert_eq(opened, 3u, "an empty name opens nothing");
    fflush(stderr);
    cr_assert_stderr_eq_str(
        "vkattn: option --kernel: 'nosuch' should be one of fwd_one, fwd_two\n"
        "vkattn: option --device: '' should be a number of `vkattn devices`, or a part of a name\n");
}

/* ---- Alignment ------------------------------------------------------------------------------------------------- */

Test(command, alignment_follows_causal)
{
    struct options options;
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV));
    cr_assert_eq(options_align(&options), VKATTN_TOP_LEFT);
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV, "--align", "bottom-right"));
    cr_assert_eq(options_align(&options), VKATTN_BOTTOM_RIGHT);
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV, "--causal", "bottom-right"));
    cr_assert_eq(options_align(&options), VKATTN_BOTTOM_RIGHT);
    cr_assert(PARSE(OPTIONS_RUN, &options, QKV, "--causal", "top-left", "--align", "top-left"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--causal", "top-left", "--align", "bottom-right"));
    cr_assert_not(PARSE(OPTIONS_RUN, &options, QKV, "--align", "top-left", "--causal", "bottom-right"));
}

/* ---- Comparison ------------------------------------------------------------------------------------------------ */

/* The ratio of one f32 element. */
static double ratio_of(float value, double reference, double bound)
{
    const struct compare_view view = compare_dense(&value, VKATTN_F32, VKATTN_BHTD, (uint64_t[]){1, 1, 1, 1});
    const struct comparison result = compare(&view, &reference, &bound);
    cr_assert_eq(compare_right(&result), result.ratio <= 1);
    return result.ratio;
}

Test(command, comparison_is_strict_about_nan_and_infinity)
{
    cr_assert_eq(ratio_of(NAN, NAN, 0.1), 0);
    cr_assert_eq(ratio_of(NAN, NAN, NAN), 0);
    cr_assert_eq(ratio_of(INFINITY, (double)INFINITY, 0.1), 0);
    cr_assert_eq(ratio_of(-INFINITY, -(double)INFINITY, 0), 0);
    cr_assert(isinf(ratio_of(NAN, 1, 0.1)), "a NaN that the reference lacks");
    cr_assert(isinf(ratio_of(1, NAN, 0.1)), "a NaN that only the reference has");
    cr_assert(isinf(ratio_of(1, NAN, (double)INFINITY)));
    cr_assert(isinf(ratio_of(INFINITY, -(double)INFINITY, 0.1)));
    cr_assert(isinf(ratio_of(0, -(double)INFINITY, (double)INFINITY)));
    cr_assert(isinf(ratio_of(INFINITY, 1, 0.1)));
    cr_assert(isinf(ratio_of(1, 1.5, NAN)), "a bound that is NaN allows nothing");
    cr_assert(isinf(ratio_of(NAN, (double)INFINITY, (double)INFINITY)));
}

Test(command, comparison_measures_in_bounds)
{
    cr_assert_float_eq(ratio_of(1.25f, 1, 0.5), 0.5, 1e-12);
    cr_assert_float_eq(ratio_of(1, 1.5, 0.25), 2, 1e-12);
    cr_assert(isinf(ratio_of(1e-30f, 0, 0)), "no bound, no error");
    cr_assert_eq(ratio_of(0, -0.0, 0), 0);
    cr_assert_eq(ratio_of(5, 1, (double)INFINITY), 0, "beyond f32 nothing is promised");
    cr_assert_eq(ratio_of(INFINITY, 1e39, 1e32), 0, "what the type cannot hold is infinite");
    cr_assert(isinf(ratio_of(-INFINITY, 1e39, 1e32)));
}

Test(command, comparison_finds_the_worst_element_in_both_orders)
{
    enum { B = 2, H = 3, T = 4, D = 5, COUNT = B * H * T * D };
    const uint64_t shape[4] = {B, H, T, D};
    static float values[COUNT];
    static double reference[COUNT], bound[COUNT];
    for (unsigned order = VKATTN_BHTD; order <= VKATTN_BTHD; order++) {
        const unsigned b = 1, h = 2, t = 1, d = 3;
        for (unsigned i = 0; i < COUNT; i++)
            bound[i] = 1;
        memset(values, 0, sizeof values);
        values[order == VKATTN_BHTD ? ((b * H + h) * T + t) * D + d : ((b * T + t) * H + h) * D + d] = 0.5f;
        const struct compare_view view = compare_dense(values, VKATTN_F32, (vkattn_order)order, shape);
        const struct comparison worst = compare(&view, reference, bound);
        cr_assert_eq(worst.ratio, 0.5);
        cr_assert(worst.index[0] == b && worst.index[1] == h && worst.index[2] == t && worst.index[3] == d);
    }
    const struct compare_view empty = compare_dense(values, VKATTN_F32, VKATTN_BHTD, (uint64_t[]){1, 1, 0, 5});
    const struct comparison none = compare(&empty, reference, bound);
    cr_assert(compare_right(&none));
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static void expect_json(void (*write)(struct json *json), const char *expected)
{
    char text[1024] = "";
    struct json json = {.file = tmpfile()};
    cr_assert_not_null(json.file);
    write(&json);
    rewind(json.file);
    text[fread(text, 1, sizeof text - 1, json.file)] = '\0';
    fclose(json.file);
    cr_assert_str_eq(text, expected);
}

static void write_strings(struct json *json)
{
    json_open_array(json, NULL);
    json_string(json, NULL, "a\"\\\n\x01\x7f/");
    json_string(json, NULL, "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    json_string(json, NULL, "\xff \xc3 \xc0\x80 \xed\xa0\x80 \xf5\x80\x80\x80 \xe2\x82");
    json_string(json, NULL, NULL);
    json_close(json);
}

Test(command, json_strings_are_escaped)
{
    expect_json(write_strings, "[\n  \"a\\\"\\\\\\u000a\\u0001\\u007f/\",\n"
                               "  \"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\",\n"
                               "  \"\\ufffd \\ufffd \\ufffd\\ufffd \\ufffd\\ufffd\\ufffd"
                               " \\ufffd\\ufffd\\ufffd\\ufffd \\ufffd\\ufffd\",\n"
                               "  null\n]\n");
}

static void write_nested(struct json *json)
{
    json_open_object(json, NULL);
    json_open_array(json, "empty");
    json_close(json);
    json_open_object(json, "o");
    json_integer(json, "i", INT64_MIN);
    json_unsigned(json, "u", UINT64_MAX);
    json_bool(json, "b", true);
    json_close(json);
    json_number(json, "half", 0.5);
    json_number(json, "nan", NAN);
    json_number(json, "inf", -(double)INFINITY);
    json_close(json);
}

Test(command, json_nests_and_has_no_nan)
{
    expect_json(write_nested, "{\n  \"empty\": [],\n  \"o\": {\n    \"i\": -9223372036854775808,\n"
                              "    \"u\": 18446744073709551615,\n    \"b\": true\n  },\n"
                              "  \"half\": 0.5,\n  \"nan\": null,\n  \"inf\": null\n}\n");
}
