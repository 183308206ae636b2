/* vkattn check: every kernel, by both ways of reaching tensors, on named and random problems, against the reference. */
/* _GNU_SOURCE: getopt_long; fnmatch is POSIX. */
#define _GNU_SOURCE

#include "command.h"
#include "json.h"
#include "report.h"
#include "trial.h"

#include <fnmatch.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Options --------------------------------------------------------------------------------------------------- */

struct check_options {
    const char *device, *kernel, *problem, *limit_text;
    const char *type_text; /* NULL: each problem's own types */
    vkattn_dtype type;
    bool mid_word;
    vkattn_access access; /* AUTO: both */
    uint32_t limits;
    uint32_t random; /* how many */
    uint64_t seed;
    double seconds; /* after which nothing is begun; 0: no limit */
    uint32_t tile;  /* 0: the chosen one */
    uint32_t parts; /* 0: the chosen number, and another */
    bool tiles, list, json, verbose, help;
};

static const struct {
    const char *name;
    uint32_t bit;
} limits[] = {
    {"no-addresses", VKATTN_LIMIT_NO_ADDRESSES},
    {"no-descriptors", VKATTN_LIMIT_NO_DESCRIPTORS},
    {"no-subgroups", VKATTN_LIMIT_NO_SUBGROUPS},
    {"minimum", VKATTN_LIMIT_MINIMUM},
    {"no-float-controls", VKATTN_LIMIT_NO_FLOAT_CONTROLS},
    {"no-matrices", VKATTN_LIMIT_NO_MATRICES},
    {"unknown-gpu", VKATTN_LIMIT_UNKNOWN_GPU},
};

static bool parse_limit(const char *name, size_t length, uint32_t *bits)
{
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (strlen(limits[i].name) == length && memcmp(limits[i].name, name, length) == 0) {
            *bits |= limits[i].bit;
            return true;
        }
    return false;
}

static bool parse_limits(const char *text, uint32_t *bits)
{
    for (;;) {
        const size_t length = strcspn(text, ",");
        if (!parse_limit(text, length, bits))
            return false;
        if (text[length] == '\0')
            return true;
        text += length + 1;
    }
}

static void print_help(void)
{
    puts("Usage: vkattn check [OPTION]...\n"
         "Run every kernel, by both ways of reaching tensors, on the named problems and on random ones, and compare\n"
         "each element of each output with the reference in double. What may not be read holds NaN; what may not be\n"
         "written is watched; every run is repeated and must give the same bits.\n\n"
         "  --device N|NAME    a number of `vkattn devices`, or a part of a name; default: the best\n"
         "  --kernel NAME      only this forward kernel of `vkattn kernels`\n"
         "  --access WAY       only address or only descriptor\n"
         "  --tiles            each tile of each kernel, not only the one that the library chooses\n"
         "  --tile N           only this row of the kernel's tile table\n"
         "  --parts N          cut the keys into so many parts, where the kernel does; default: the number that the\n"
         "                     library chooses, and 7\n"
         "  --problem PATTERN,...\n"
         "                     only problems with such a name, as in 'causal/*'; random:SEED is the one of a seed\n"
         "  --type NAME        Q, K and V of each problem in this type, whatever it says\n"
         "  --mid-word         announce that K and V may start in mid-word (vkattn_options.mid_word_starts)\n"
         "  --random N         N random problems, too, with seeds from --seed on\n"
         "  --seed S           default 1; --seed S+n --random 1 makes the same problem as the n-th of --seed S\n"
         "  --seconds N        try nothing more after so many, and say how many problems were left out\n"
         "  --limit NAME,...   pretend that the device has less: minimum, no-addresses, no-descriptors, no-subgroups,\n"
         "                     no-float-controls, no-matrices, unknown-gpu\n"
         "  --list             list the named problems and exit\n"
         "  --json             print JSON\n"
         "  --verbose          a line for each trial, and the library's messages\n"
         "  --help             print this text\n\n" COMMAND_EXIT_HELP);
}

enum {
    DEVICE = 1,
    KERNEL,
    ACCESS,
    TILES,
    TILE,
    PARTS,
    PROBLEM,
    TYPE,
    MID_WORD,
    RANDOM,
    SEED,
    SECONDS,
    LIMIT,
    LIST,
    JSON,
    VERBOSE,
    HELP
};

static bool bad_value(const char *option, const char *value, const char *wants)
{
    command_complain("option --%s: '%s' should be %s", option, value, wants);
    return false;
}

static bool store_number(struct check_options *options, int option, const char *value)
{
    int64_t number;
    switch (option) {
    case TILE:
        if (!command_parse_integer(value, 1, UINT32_MAX, &number))
            return bad_value("tile", value, "a number from 1 on");
        options->tile = (uint32_t)number;
        return true;
    case PARTS:
        if (!command_parse_integer(value, 1, VKATTN_MAX_PARTS, &number))
            return bad_value("parts", value, "a number from 1 to 1024");
        options->parts = (uint32_t)number;
        return true;
    case SECONDS:
        if (!command_parse_integer(value, 1, 86400, &number))
            return bad_value("seconds", value, "1 to 86400");
        options->seconds = (double)number;
        return true;
    case RANDOM:
        if (!command_parse_integer(value, 0, UINT32_MAX, &number))
            return bad_value("random", value, "how many, 0 or above");
        options->random = (uint32_t)number;
        return true;
    default:
        if (!command_parse_integer(value, 0, INT64_MAX, &number))
            return bad_value("seed", value, "an integer, 0 or above");
        options->seed = (uint64_t)number;
        return true;
    }
}

static bool store(struct check_options *options, int option, const char *value)
{
    switch (option) {
    case DEVICE:
        options->device = value;
        return true;
    case KERNEL:
        options->kernel = value;
        return true;
    case PROBLEM:
        options->problem = value;
        return true;
    case ACCESS:
        return command_parse_access(value, &options->access) || bad_value("access", value, "address or descriptor");
    case LIMIT:
        options->limit_text = value;
        return parse_limits(value, &options->limits) ||
               bad_value("limit", value, "names from --help, with commas between");
    case MID_WORD:
        return options->mid_word = true;
    case TYPE:
        options->type_text = value;
        return command_parse_type(value, &options->type) || bad_value("type", value, "f32, f16 or bf16");
    case TILES:
        return options->tiles = true;
    case LIST:
        return options->list = true;
    case JSON:
        return options->json = true;
    case VERBOSE:
        return options->verbose = true;
    case HELP:
        return options->help = true;
    case TILE:
    case PARTS:
    case RANDOM:
    case SEED:
    case SECONDS:
        return store_number(options, option, value);
    default:
        return false; /* getopt_long has complained */
    }
}

static bool parse(int argc, char **argv, struct check_options *options)
{
    static const struct option known[] = {{"device", required_argument, NULL, DEVICE},
                                          {"kernel", required_argument, NULL, KERNEL},
                                          {"access", required_argument, NULL, ACCESS},
                                          {"tiles", no_argument, NULL, TILES},
                                          {"tile", required_argument, NULL, TILE},
                                          {"parts", required_argument, NULL, PARTS},
                                          {"problem", required_argument, NULL, PROBLEM},
                                          {"type", required_argument, NULL, TYPE},
                                          {"mid-word", no_argument, NULL, MID_WORD},
                                          {"random", required_argument, NULL, RANDOM},
                                          {"seed", required_argument, NULL, SEED},
                                          {"seconds", required_argument, NULL, SECONDS},
                                          {"limit", required_argument, NULL, LIMIT},
                                          {"list", no_argument, NULL, LIST},
                                          {"json", no_argument, NULL, JSON},
                                          {"verbose", no_argument, NULL, VERBOSE},
                                          {"help", no_argument, NULL, HELP},
                                          {NULL, 0, NULL, 0}};
    int option;
    *options = (struct check_options){.seed = 1};
    optind = 1;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
        if (!store(options, option, optarg))
            return false;
    if (optind < argc)
        command_complain("unexpected argument '%s'", argv[optind]);
    else if (options->tile && !options->kernel)
        command_complain("option --tile needs --kernel: tables differ");
    return optind == argc && !(options->tile && !options->kernel);
}

/* ---- Problems -------------------------------------------------------------------------------------------------- */

/* True when one of the patterns, between commas, fits. */
static bool wanted(const struct check_options *options, const char *name)
{
    char pattern[128];
    const char *rest = options->problem;
    while (rest && *rest) {
        const size_t length = strcspn(rest, ",");
        snprintf(pattern, sizeof pattern, "%.*s", (int)(length < sizeof pattern ? length : sizeof pattern - 1), rest);
        if (fnmatch(pattern, name, 0) == 0)
            return true;
        rest += length + (rest[length] == ',');
    }
    return !options->problem;
}

static uint32_t named_count(const struct check_options *options)
{
    struct check_problem problem;
    uint32_t count = 0;
    for (uint32_t i = 0; problems_named(i, &problem); i++)
        count += wanted(options, problem.name);
    return count;
}

static void list_json(const struct check_options *options)
{
    struct json json = {.file = stdout};
    struct check_problem problem;
    char text[REPORT_PROBLEM_SIZE];
    json_open_array(&json, NULL);
    for (uint32_t i = 0; problems_named(i, &problem); i++) {
        if (!wanted(options, problem.name))
            continue;
        json_open_object(&json, NULL);
        json_string(&json, "name", problem.name);
        json_string(&json, "about", problem.about);
        json_string(&json, "problem", report_problem(&problem.problem, text));
        json_close(&json);
    }
    json_close(&json);
}

static int list(const struct check_options *options)
{
    struct check_problem problem;
    char text[REPORT_PROBLEM_SIZE];
    if (options->json) {
        list_json(options);
        return COMMAND_OK;
    }
    for (uint32_t i = 0; problems_named(i, &problem); i++)
        if (wanted(options, problem.name))
            printf("%-26s %s%s%s\n", problem.name, report_problem(&problem.problem, text), problem.about ? " - " : "",
                   problem.about ? problem.about : "");
    return COMMAND_OK;
}

/* ---- Tallies --------------------------------------------------------------------------------------------------- */

/* One way to compute a problem: a kernel, a way of reaching tensors, perhaps a tile. */
struct combination {
    vkattn_options options;
    uint32_t passed, failed, skipped;
    double ratio; /* the worst, of what passed */
    char where[PROBLEM_NAME_SIZE];
    const char *output;
    uint64_t index[4];
};

struct reason {
    char sentence[sizeof((struct trial_result *)0)->sentence];
    uint32_t count;
};

enum { MOST_COMBINATIONS = 256, MOST_REASONS = 32 };

/* A device keeps its pipelines, and a CPU driver some 10 MB for each: beyond so many it is opened anew. */
enum { MOST_PIPELINES = 64 };

/* Of the keys, where a kernel cuts them: most named problems are too short to be cut otherwise. */
enum { OTHER_PARTS = 7 };

struct check {
    const struct check_options *options;
    vkattn_context *context; /* NULL: it could not be opened again */
    vkattn_listed listed;
    uint32_t index;
    bool validating;
    struct combination combinations[MOST_COMBINATIONS];
    uint32_t combination_count;
    struct reason reasons[MOST_REASONS];
    uint32_t reason_count;
    uint32_t passed, failed, skipped;
    uint32_t done, total; /* problems */
    uint32_t left_out;    /* of them, for want of time */
    double start;
    uint32_t messages;      /* of validation, on devices closed by now */
    uint32_t messages_seen; /* on this one */
    bool lost;
    struct json json;
};

static uint32_t messages(const struct check *check)
{
    return check->messages + (check->context ? check->context->validation_messages : 0);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Reasons that differ are kept apart as far as there is room. */
static void count_reason(struct check *check, const char *sentence)
{
    uint32_t i = 0;
    while (i < check->reason_count && strcmp(check->reasons[i].sentence, sentence) != 0)
        i++;
    if (i == MOST_REASONS)
        return;
    if (i == check->reason_count)
        snprintf(check->reasons[check->reason_count++].sentence, sizeof check->reasons->sentence, "%s", sentence);
    check->reasons[i].count++;
}

static void keep_worst(struct combination *combination, const struct check_problem *problem,
                       const struct trial_result *result)
{
    if (combination->output && result->ratio <= combination->ratio)
        return;
    combination->ratio = result->ratio;
    combination->output = result->output;
    snprintf(combination->where, sizeof combination->where, "%s", problem->name);
    memcpy(combination->index, result->index, sizeof combination->index);
}

/* ---- Reports --------------------------------------------------------------------------------------------------- */

static const char *const outcome_names[] = {"passed", "FAILED", "skipped"};

/* "address", or "address 3 /7" with a tile and parts. */
static const char *way(const vkattn_options *options, char text[32])
{
    int length = snprintf(text, 32, "%s", report_access(options->access));
    if (options->tile)
        length += snprintf(text + length, 32 - (size_t)length, " %" PRIu32, options->tile);
    if (options->parts)
        snprintf(text + length, 32 - (size_t)length, " /%" PRIu32, options->parts);
    return text;
}

static void print_repetition(const struct check *check, const struct combination *combination, const char *problem)
{
    const vkattn_options *o = &combination->options;
    printf("    vkattn check --device %" PRIu32 " --kernel %s --access %s", check->index, o->kernel,
           report_access(o->access));
    if (o->tile)
        printf(" --tile %" PRIu32, o->tile);
    if (o->parts)
        printf(" --parts %" PRIu32, o->parts);
    if (check->options->limit_text)
        printf(" --limit %s", check->options->limit_text);
    if (check->options->mid_word)
        printf(" --mid-word");
    if (check->options->type_text)
        printf(" --type %s", check->options->type_text);
    printf(" --problem %s\n", problem);
}

static void print_trial(struct check *check, const struct combination *combination, const struct check_problem *problem,
                        const struct trial_result *result, double seconds)
{
    char text[32], description[REPORT_PROBLEM_SIZE];
    const bool failed = result->outcome == TRIAL_FAILED;
    if (!failed && !check->options->verbose)
        return;
    command_progress(NULL);
    printf("%s %s %s %s", outcome_names[result->outcome], combination->options.kernel, way(&combination->options, text),
           problem->name);
    if (result->outcome == TRIAL_PASSED)
        printf(" %.3g of the bound in %s, %.1f ms", result->ratio, result->output ? result->output : "nothing",
               seconds * 1e3);
    printf("%s%s\n", result->sentence[0] ? ": " : "", result->sentence);
    if (!failed)
        return;
    printf("    %s\n", report_problem(&problem->problem, description));
    print_repetition(check, combination, problem->name);
    fflush(stdout);
}

static void json_index(struct json *json, const uint64_t index[4])
{
    json_open_array(json, "index");
    for (unsigned i = 0; i < 4; i++)
        json_unsigned(json, NULL, index[i]);
    json_close(json);
}

static void json_options(struct json *json, const vkattn_options *options)
{
    json_string(json, "kernel", options->kernel);
    json_string(json, "access", report_access(options->access));
    if (options->tile)
        json_unsigned(json, "tile", options->tile);
    if (options->parts)
        json_unsigned(json, "parts", options->parts);
}

static void json_trial(struct json *json, const struct combination *combination, const struct check_problem *problem,
                       const struct trial_result *result, double seconds)
{
    static const char *const names[] = {"passed", "failed", "skipped"};
    json_open_object(json, NULL);
    json_options(json, &combination->options);
    json_string(json, "problem", problem->name);
    json_string(json, "outcome", names[result->outcome]);
    if (result->output) {
        json_number(json, "ratio", result->ratio);
        json_string(json, "output", result->output);
        json_index(json, result->index);
    }
    if (result->sentence[0])
        json_string(json, "sentence", result->sentence);
    json_number(json, "seconds", seconds);
    json_close(json);
}

static void json_summary(struct check *check)
{
    struct json *json = &check->json;
    json_open_array(json, "combinations");
    for (uint32_t i = 0; i < check->combination_count; i++) {
        const struct combination *c = &check->combinations[i];
        json_open_object(json, NULL);
        json_options(json, &c->options);
        json_unsigned(json, "passed", c->passed);
        json_unsigned(json, "failed", c->failed);
        json_unsigned(json, "skipped", c->skipped);
        json_number(json, "worst_ratio", c->ratio);
        json_string(json, "worst_problem", c->where[0] ? c->where : NULL);
        json_close(json);
    }
    json_close(json);
    json_open_array(json, "skipped_because");
    for (uint32_t i = 0; i < check->reason_count; i++) {
        json_open_object(json, NULL);
        json_string(json, "reason", check->reasons[i].sentence);
        json_unsigned(json, "count", check->reasons[i].count);
        json_close(json);
    }
    json_close(json);
    json_unsigned(json, "problems_left_out", check->left_out);
    json_bool(json, "validating", check->validating);
    json_unsigned(json, "validation_messages", messages(check));
    json_unsigned(json, "passed", check->passed);
    json_unsigned(json, "failed", check->failed);
    json_unsigned(json, "skipped", check->skipped);
}

static void print_combination(const struct combination *c)
{
    char text[32];
    printf("%-12s %-14s %8" PRIu32 " %8" PRIu32 " %8" PRIu32, c->options.kernel, way(&c->options, text), c->passed,
           c->failed, c->skipped);
    if (c->output)
        printf("  %8.3g  %s, %s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", c->ratio, c->where, c->output,
               c->index[0], c->index[1], c->index[2], c->index[3]);
    putchar('\n');
}

static void print_summary(const struct check *check)
{
    printf("%s (%s %s)%s%s\n", check->listed.name, check->listed.driver, check->listed.driver_info,
           check->options->limit_text ? ", limits " : "", check->options->limit_text ? check->options->limit_text : "");
    printf("%-12s %-14s %8s %8s %8s  %8s  %s\n", "kernel", "access", "passed", "failed", "skipped", "worst",
           "error/bound at");
    for (uint32_t i = 0; i < check->combination_count; i++)
        print_combination(&check->combinations[i]);
    for (uint32_t i = 0; i < check->reason_count; i++)
        printf("skipped %" PRIu32 ": %s\n", check->reasons[i].count, check->reasons[i].sentence);
    if (check->validating)
        printf("%" PRIu32 " validation messages\n", messages(check));
    if (check->lost)
        puts("the device was lost: the rest was not tried");
    if (check->left_out)
        printf("time ran out: %" PRIu32 " of %" PRIu32 " problems were not tried, or not in every way\n",
               check->left_out, check->total);
    printf("%" PRIu32 " passed, %" PRIu32 " failed, %" PRIu32 " skipped\n", check->passed, check->failed,
           check->skipped);
}

/* ---- Device ---------------------------------------------------------------------------------------------------- */

/* Messages of the validation layer are defects and always shown; those of the library only with --verbose. */
static void on_message(void *user, const char *text)
{
    struct check *check = user;
    const uint32_t seen = check->context ? check->context->validation_messages : 0;
    if (seen != check->messages_seen)
        command_complain("validation: %s", text);
    else if (check->options->verbose)
        command_message(NULL, text);
    check->messages_seen = seen;
}

static int open_device(struct check *check)
{
    const vkattn_open_info info = {.device = check->options->device,
                                   .limits = check->options->limits,
                                   .message = on_message,
                                   .message_user = check};
    const vkattn_status status = vkattn_open(&info, &check->context);
    if (status != VKATTN_OK) {
        command_fail(status);
        return COMMAND_NO_DEVICE;
    }
    check->listed = check->context->listed;
    check->index = check->context->index;
    check->validating = check->context->validating;
    check->messages_seen = check->context->validation_messages;
    if (check->messages_seen)
        command_complain("the validation layer complained while the device was opened; --verbose shows how");
    return COMMAND_OK;
}

/* So that pipelines do not pile up. */
static void renew_device(struct check *check)
{
    if (vkattn_device_pipeline_count(check->context->vkattn) < MOST_PIPELINES)
        return;
    check->messages += check->context->validation_messages;
    vkattn_close(check->context);
    check->context = NULL;
    check->lost = open_device(check) != COMMAND_OK;
}

/* ---- Trials ---------------------------------------------------------------------------------------------------- */

static void count(struct check *check, struct combination *combination, const struct check_problem *problem,
                  const struct trial_result *result)
{
    switch (result->outcome) {
    case TRIAL_PASSED:
        combination->passed++;
        check->passed++;
        if (result->output)
            keep_worst(combination, problem, result);
        break;
    case TRIAL_FAILED:
        combination->failed++;
        check->failed++;
        break;
    case TRIAL_SKIPPED:
        combination->skipped++;
        check->skipped++;
        count_reason(check, result->sentence);
        break;
    }
    check->lost = check->lost || result->lost;
}

static void try_combination(struct check *check, struct combination *combination, const struct check_problem *problem,
                            struct trial *trial)
{
    struct trial_result result;
    char text[32];
    command_progress("%" PRIu32 " of %" PRIu32 ": %s, %s %s; %" PRIu32 " failed", check->done + 1, check->total,
                     problem->name, combination->options.kernel, way(&combination->options, text), check->failed);
    const double start = now();
    trial_run(trial, &combination->options, &result);
    const double seconds = now() - start;
    count(check, combination, problem, &result);
    if (check->options->json)
        json_trial(&check->json, combination, problem, &result, seconds);
    else
        print_trial(check, combination, problem, &result, seconds);
}

/* A problem that cannot be set up fails in every combination. */
static void fail_setup(struct check *check, const struct check_problem *problem, vkattn_status status)
{
    command_complain("%s: %s: %s", problem->name, vkattn_status_name(status), vkattn_last_error());
    check->failed += check->combination_count;
    for (uint32_t i = 0; i < check->combination_count; i++)
        check->combinations[i].failed++;
    check->lost = check->lost || status == VKATTN_DEVICE_LOST;
}

static bool out_of_time(const struct check *check)
{
    return check->options->seconds > 0 && now() - check->start > check->options->seconds;
}

/* A problem that is not tried in every combination counts as left out. */
static void try_problem(struct check *check, struct check_problem *problem)
{
    struct trial_data data;
    struct trial trial = {0};
    if (check->lost)
        return;
    if (out_of_time(check)) {
        check->left_out++;
        return;
    }
    if (check->options->type_text)
        problem->problem.q_type = problem->problem.kv_type = check->options->type;
    vkattn_status status = trial_data_build(problem, &data);
    if (status == VKATTN_OK)
        status = trial_open(check->context, &data, &trial);
    if (status != VKATTN_OK)
        fail_setup(check, problem, status);
    uint32_t tried = 0;
    for (; status == VKATTN_OK && tried < check->combination_count && !check->lost && !out_of_time(check); tried++)
        try_combination(check, &check->combinations[tried], problem, &trial);
    check->left_out += status == VKATTN_OK && !check->lost && tried < check->combination_count;
    trial_close(&trial);
    trial_data_free(&data);
    check->done++;
    if (!check->lost)
        renew_device(check);
}

static void try_problems(struct check *check)
{
    const struct check_options *options = check->options;
    struct check_problem problem;
    uint64_t seed;
    if (options->problem && problems_random_seed(options->problem, &seed)) {
        problems_random(seed, &problem);
        try_problem(check, &problem);
    }
    for (uint32_t i = 0; problems_named(i, &problem); i++)
        if (wanted(options, problem.name))
            try_problem(check, &problem);
    for (uint32_t i = 0; i < options->random; i++) {
        problems_random(options->seed + i, &problem);
        try_problem(check, &problem);
    }
}

/* ---- Combinations ---------------------------------------------------------------------------------------------- */

/* A problem that every kernel should take. */
static const vkattn_problem simple = {.len_q = 1, .len_kv = 1, .dim_qk = 64};

/* What the workspace of a problem takes in so many parts; 0 where the kernel refuses it. */
static uint64_t workspace(const struct check *check, vkattn_options options, uint32_t parts)
{
    vkattn_report report;
    options.parts = parts;
    return vkattn_explain(check->context->vkattn, &simple, &options, &report) == VKATTN_OK ? report.workspace_size : 0;
}

static void add_one(struct check *check, const vkattn_options *options)
{
    if (check->combination_count < MOST_COMBINATIONS)
        check->combinations[check->combination_count++] = (struct combination){.options = *options};
}

/* A kernel that cuts the keys needs room for what each part leaves. */
static void add_combination(struct check *check, const char *kernel, vkattn_access access, uint32_t tile)
{
    vkattn_options options = {.kernel = kernel,
                              .access = access,
                              .tile = tile,
                              .parts = check->options->parts,
                              .mid_word_starts = check->options->mid_word};
    add_one(check, &options);
    if (options.parts || workspace(check, options, 1) == workspace(check, options, OTHER_PARTS))
        return;
    options.parts = OTHER_PARTS;
    add_one(check, &options);
}

/* The library refuses a number past the end of a tile table. */
static bool has_tile(const struct check *check, const char *kernel, uint32_t tile)
{
    const vkattn_options options = {.kernel = kernel, .tile = tile};
    vkattn_report report;
    return vkattn_explain(check->context->vkattn, &simple, &options, &report) != VKATTN_INVALID;
}

static void add_kernel(struct check *check, const char *kernel)
{
    const struct check_options *options = check->options;
    for (vkattn_access access = VKATTN_ACCESS_ADDRESS; access <= VKATTN_ACCESS_DESCRIPTOR; access++) {
        if (options->access && options->access != access)
            continue;
        if (!options->tiles)
            add_combination(check, kernel, access, options->tile);
        for (uint32_t tile = 1; options->tiles && has_tile(check, kernel, tile); tile++)
            add_combination(check, kernel, access, tile);
    }
}

/* The forward kernels are the candidates of any problem. */
static bool add_kernels(struct check *check)
{
    const struct check_options *options = check->options;
    vkattn_report report;
    vkattn_explain(check->context->vkattn, &simple, NULL, &report);
    for (uint32_t i = 0; i < report.candidate_count; i++)
        if (!options->kernel || strcmp(options->kernel, report.candidates[i].kernel) == 0)
            add_kernel(check, report.candidates[i].kernel);
    if (check->combination_count == 0)
        command_complain("option --kernel: '%s' is no forward kernel; `vkattn kernels` lists them", options->kernel);
    else if (options->tile && !has_tile(check, options->kernel, options->tile))
        command_complain("option --tile: %s", vkattn_last_error());
    else
        return true;
    return false;
}

/* ---- The whole ------------------------------------------------------------------------------------------------- */

static int conclude(const struct check *check)
{
    if (check->failed || check->lost || messages(check))
        return COMMAND_WRONG;
    if (check->passed)
        return COMMAND_OK;
    command_complain("nothing was checked: %s",
                     check->reason_count ? check->reasons[0].sentence : "there are no problems");
    return COMMAND_REFUSED;
}

static int run_check(struct check *check)
{
    struct json *json = &check->json;
    if (!add_kernels(check))
        return COMMAND_USAGE;
    if (check->options->json) {
        *json = (struct json){.file = stdout};
        json_open_object(json, NULL);
        json_string(json, "device", check->listed.name);
        json_string(json, "driver", check->listed.driver);
        json_string(json, "driver_info", check->listed.driver_info);
        json_open_array(json, "trials");
    }
    try_problems(check);
    command_progress(NULL);
    if (check->options->json) {
        json_close(json);
        json_summary(check);
        json_close(json);
    } else {
        print_summary(check);
    }
    return conclude(check);
}

int command_check(int argc, char **argv)
{
    struct check_options options;
    uint64_t seed;
    if (!parse(argc, argv, &options))
        return COMMAND_USAGE;
    if (options.help) {
        print_help();
        return COMMAND_OK;
    }
    const uint32_t named = named_count(&options),
                   given = options.problem && problems_random_seed(options.problem, &seed);
    if (named + given == 0) {
        command_complain("option --problem: no problem is named '%s'; --list lists them", options.problem);
        return COMMAND_USAGE;
    }
    if (options.list)
        return list(&options);
    struct check *check = calloc(1, sizeof *check);
    if (!check) {
        command_complain("no memory");
        return COMMAND_REFUSED;
    }
    check->options = &options;
    check->total = named + given + options.random;
    check->start = now();
    int exit_status = open_device(check);
    if (exit_status == COMMAND_OK)
        exit_status = run_check(check);
    vkattn_close(check->context);
    free(check);
    return exit_status;
}
