/* _GNU_SOURCE: getopt_long. */
#define _GNU_SOURCE

#include "options.h"

#include "command.h"

#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* RUN_ONLY: explain takes it, so that a command line can be tried out, and does nothing with it. */
enum {
    RUN = OPTIONS_RUN,
    EXPLAIN = OPTIONS_EXPLAIN,
    BOTH = OPTIONS_RUN | OPTIONS_EXPLAIN,
    WITHOUT_EFFECT = 1u << 2,
    RUN_ONLY = BOTH | WITHOUT_EFFECT
};

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* True when text is one of two words; *second says which. */
static bool either(const char *text, const char *zero, const char *one, bool *second)
{
    *second = strcmp(text, one) == 0;
    return *second || strcmp(text, zero) == 0;
}

static bool set_layout(struct options *options, const char *text)
{
    bool bthd;
    const bool ok = either(text, "bhtd", "bthd", &bthd);
    options->layout = bthd ? VKATTN_BTHD : VKATTN_BHTD;
    return ok;
}

static bool parse_align(const char *text, vkattn_align *align)
{
    bool bottom_right;
    const bool ok = either(text, "top-left", "bottom-right", &bottom_right);
    *align = bottom_right ? VKATTN_BOTTOM_RIGHT : VKATTN_TOP_LEFT;
    return ok;
}

static bool set_causal(struct options *options, const char *text)
{
    return parse_align(text, &options->causal);
}

static bool set_align(struct options *options, const char *text)
{
    return parse_align(text, &options->align);
}

static bool set_mask_true(struct options *options, const char *text)
{
    bool ignore;
    const bool ok = either(text, "attend", "ignore", &ignore);
    options->mask_true = ignore ? VKATTN_TRUE_IGNORES : VKATTN_TRUE_ATTENDS;
    return ok;
}

static bool set_lse_base(struct options *options, const char *text)
{
    options->lse_base_given = true;
    return either(text, "e", "2", &options->lse_base_2);
}

static bool set_access(struct options *options, const char *text)
{
    return command_parse_access(text, &options->access);
}

static bool set_scale(struct options *options, const char *text)
{
    /* The library reads 0 as 1/sqrt(d); who writes 0 means something else. */
    return command_parse_float(text, &options->scale) && options->scale != 0;
}

static bool set_tolerance(struct options *options, const char *text)
{
    options->tolerance_given = true;
    return command_parse_float(text, &options->tolerance) && options->tolerance >= 0;
}

static bool set_softcap(struct options *options, const char *text)
{
    return command_parse_float(text, &options->softcap) && options->softcap >= 0;
}

static bool set_window(struct options *options, const char *text)
{
    int64_t sides[2];
    if (!command_parse_integers(text, -1, INT32_MAX, 2, sides))
        return false;
    options->window = true;
    options->left = (int32_t)sides[0];
    options->right = (int32_t)sides[1];
    return true;
}

static bool set_cast(struct options *options, const char *text)
{
    options->cast_given = true;
    return command_parse_type(text, &options->cast);
}

static bool set_type(struct options *options, const char *text)
{
    options->type_given = true;
    return command_parse_type(text, &options->type);
}

/* What the library would refuse in words of its own. */
static bool shape_possible(const uint32_t shape[SHAPE_COUNT])
{
    const uint32_t d = shape[SHAPE_D], dv = shape[SHAPE_DV], g = shape[SHAPE_G];
    return shape[SHAPE_B] >= 1 && shape[SHAPE_H] >= 1 && g >= 1 && shape[SHAPE_H] % g == 0 &&
           shape[SHAPE_TQ] <= OPTIONS_MAX_LEN && shape[SHAPE_TK] <= OPTIONS_MAX_LEN && d >= 1 && d <= VKATTN_MAX_DIM &&
           dv >= 1 && dv <= VKATTN_MAX_DIM;
}

static bool set_shape(struct options *options, const char *text)
{
    int64_t sizes[SHAPE_COUNT];
    if (!command_parse_integers(text, 0, UINT32_MAX, SHAPE_COUNT, sizes))
        return false;
    for (unsigned i = 0; i < SHAPE_COUNT; i++)
        options->shape[i] = (uint32_t)sizes[i];
    options->shape_given = true;
    return shape_possible(options->shape);
}

/* ---- The table ------------------------------------------------------------------------------------------------- */

enum file_use { NO_FILE, READ_FILE, WRITTEN_FILE };

/* One option: a text or a flag that is stored at an offset, or a value with a parser. */
struct row {
    const char *name;
    const char *value; /* NULL: takes none */
    unsigned commands;
    size_t at;
    bool (*set)(struct options *options, const char *text);
    const char *help;
    const char *wants; /* with a parser: "--name should be ..." */
    enum file_use file;
};

#define TEXT(name, value, commands, field, help)                                          \
    {                                                                                     \
        name, value, commands, offsetof(struct options, field), NULL, help, NULL, NO_FILE \
    }
#define INPUT(name, value, commands, field, help)                                           \
    {                                                                                       \
        name, value, commands, offsetof(struct options, field), NULL, help, NULL, READ_FILE \
    }
#define OUTPUT(name, value, commands, field, help)                                             \
    {                                                                                          \
        name, value, commands, offsetof(struct options, field), NULL, help, NULL, WRITTEN_FILE \
    }
#define FLAG(name, commands, field, help)                                                \
    {                                                                                    \
        name, NULL, commands, offsetof(struct options, field), NULL, help, NULL, NO_FILE \
    }
#define VALUE(name, value, commands, set, help, wants)      \
    {                                                       \
        name, value, commands, 0, set, help, wants, NO_FILE \
    }

static const struct row rows[] = {
    INPUT("q", "Q.npy", BOTH, q, "queries [B,H,Tq,d]: float16, float32, or float64 (stored as float32)"),
    INPUT("k", "K.npy", BOTH, k, "keys [B,G,Tk,d]; G divides H"),
    INPUT("v", "V.npy", BOTH, v, "values [B,G,Tk,dv]"),
    VALUE("shape", "B,H,G,TQ,TK,D,DV", EXPLAIN, set_shape, "explain this shape; no --q, --k and --v then",
          "seven integers B,H,G,TQ,TK,D,DV: G divides H, TQ and TK are 0 to 536870911, D and DV 1 to 576"),
    VALUE("type", "TYPE", EXPLAIN, set_type, "type of a --shape: f32 (default), f16 or bf16", "f32, f16 or bf16"),
    OUTPUT("out", "O.npy", BOTH, out, "write the output here: Q's dimensions and layout"),
    OUTPUT("lse", "L.npy", BOTH, lse, "write log-sum-exp here: float32 [B,H,Tq]"),
    OUTPUT("weights", "W.npy", BOTH, weights, "write the attention weights here: float32 [B,H,Tq,Tk]"),
    VALUE("layout", "LAYOUT", BOTH, set_layout,
          "of Q, K, V and O: bhtd (default) or bthd; with 3 dimensions [H,T,d] or [T,H,d], with 2 [T,d]",
          "bhtd or bthd"),
    VALUE("cast", "TYPE", BOTH, set_cast, "store Q, K, V and O as f32, f16 or bf16", "f32, f16 or bf16"),
    VALUE("scale", "X", BOTH, set_scale, "factor of the scores; default 1/sqrt(d)", "a finite number other than 0"),
    VALUE("softcap", "X", BOTH, set_softcap, "scores become X tanh(s / X); 0: no cap", "a finite number, 0 or above"),
    VALUE("causal", "ALIGN", BOTH, set_causal, "no query sees a later key; top-left or bottom-right says what is later",
          "top-left or bottom-right"),
    VALUE("window", "LEFT,RIGHT", BOTH, set_window, "a query sees so many keys before and after its own; -1: unbounded",
          "two integers LEFT,RIGHT, each 0 or above, or -1 for unbounded"),
    VALUE("align", "ALIGN", BOTH, set_align,
          "of a window or ALiBi without --causal: top-left (default) or bottom-right", "top-left or bottom-right"),
    INPUT("prefix", "P.npy", BOTH, prefix, "integers [B]: so many first keys are seen whatever the band says"),
    INPUT("mask", "M.npy", BOTH, mask, "bool or uint8, broadcasts to [B,H,Tq,Tk]"),
    VALUE("mask-true", "MEANING", BOTH, set_mask_true, "what True in the mask means: attend (default) or ignore",
          "attend or ignore"),
    INPUT("bias", "B.npy", BOTH, bias, "added to the scores; float, broadcasts to [B,H,Tq,Tk]; -inf hides a key"),
    INPUT("alibi", "S.npy", BOTH, alibi, "ALiBi slopes, float [H]"),
    INPUT("sinks", "S.npy", BOTH, sinks, "one learned logit per head, float [H]"),
    INPUT("kv-lengths", "N.npy", BOTH, kv_lengths, "integers [B]: keys of each batch member"),
    INPUT("q-lengths", "N.npy", BOTH, q_lengths, "integers [B]: queries of each batch member"),
    INPUT("q-segments", "S.npy", BOTH, q_segments,
          "integers [B,Tq], or [Tq] for B = 1: a query sees keys of its own segment"),
    INPUT("kv-segments", "S.npy", BOTH, kv_segments, "integers [B,Tk], or [Tk] for B = 1"),
    VALUE("lse-base", "BASE", BOTH, set_lse_base, "of the logarithm in --lse: e (default) or 2", "e or 2"),
    TEXT("device", "N|NAME", BOTH, device, "a number of `vkattn devices`, or a part of a name; default: the best"),
    TEXT("kernel", "NAME", BOTH, kernel, "use this forward kernel (fwd_...) of `vkattn kernels`"),
    INPUT("tuning", "FILE", BOTH, tuning, "choose tiles and kernels by this file of `vkattn tune`"),
    VALUE("access", "WAY", BOTH, set_access, "how tensors are reached: address or descriptor; default: the faster",
          "address or descriptor"),
    FLAG("check", RUN_ONLY, check, "compare with the reference in double; exit status 1 if outside the bound"),
    INPUT("expect", "E.npy", RUN_ONLY, expect,
          "print how far O is from this array of its shape, a model's own output say"),
    VALUE("tolerance", "X", RUN_ONLY, set_tolerance,
          "exit status 1 if an element of O is farther than X from --expect's; default: only print",
          "a finite number, 0 or above"),
    FLAG("time", RUN_ONLY, time, "print the median time and GFLOP/s of repeated runs"),
    FLAG("json", EXPLAIN, json, "print JSON"),
    FLAG("verbose", BOTH, verbose, "print the library's messages"),
    FLAG("help", BOTH, help, "print this text"),
};

enum { ROWS = sizeof rows / sizeof *rows };

static void print_help(unsigned command)
{
    if (command == OPTIONS_RUN)
        puts("Usage: vkattn run --q Q.npy --k K.npy --v V.npy [OPTION]...\n"
             "Compute attention of NumPy arrays (versions 1 to 3, C order) on a Vulkan device.\n");
    else
        puts(
            "Usage: vkattn explain --q Q.npy --k K.npy --v V.npy [OPTION]...\n"
            "       vkattn explain --shape B,H,G,TQ,TK,D,DV [--type TYPE] [OPTION]...\n"
            "Say which kernel a problem gets, why the others do not, and what it costs. Takes every option of "
            "`vkattn run`:\n"
            "the outputs that it names are planned for and not written; --check, --expect, --tolerance and --time have "
            "no\n"
            "effect.\n");
    for (unsigned i = 0; i < ROWS; i++) {
        const bool listed = command == OPTIONS_RUN || !(rows[i].commands & WITHOUT_EFFECT);
        if (!(rows[i].commands & command) || !listed)
            continue;
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", rows[i].name, rows[i].value ? " " : "",
                 rows[i].value ? rows[i].value : "");
        printf("  %-28s %s\n", left, rows[i].help);
    }
    fputs("\nIntegers are int32 or int64; a prefix beyond Tk is Tk. Masks, biases, LSE and weights are [B,H,Tq(,Tk)] "
          "in both\n"
          "layouts. The file of O is float16 for f16, and float32 for f32 and bf16. An output is neither another "
          "output's\n"
          "file nor an input's.\n\n" COMMAND_EXIT_HELP,
          stdout);
}

/* ---- Parsing --------------------------------------------------------------------------------------------------- */

static bool store(struct options *options, const struct row *row, const char *text)
{
    if (row->set) {
        if (row->set(options, text))
            return true;
        command_complain("option --%s: '%s' should be %s", row->name, text, row->wants);
        return false;
    }
    void *field = (char *)options + row->at;
    if (row->value)
        memcpy(field, &text, sizeof text);
    else
        *(bool *)field = true;
    return true;
}

static bool parse_arguments(int argc, char **argv, unsigned command, struct options *options)
{
    struct option known[ROWS + 1] = {0};
    int index_of[ROWS];
    unsigned count = 0;
    for (int i = 0; i < ROWS; i++) {
        if (!(rows[i].commands & command))
            continue;
        index_of[count] = i;
        known[count++] = (struct option){rows[i].name, rows[i].value ? required_argument : no_argument, NULL, 0};
    }
    optind = 1;
    int chosen = 0, c;
    while ((c = getopt_long(argc, argv, "", known, &chosen)) != -1) {
        if (c == '?' || !store(options, &rows[index_of[chosen]], optarg))
            return false;
    }
    if (optind < argc)
        command_complain("unexpected argument '%s'", argv[optind]);
    return optind == argc;
}

/* What a row of files was given; NULL: nothing, or the row is of something else. */
static const char *file_of(const struct options *options, const struct row *row)
{
    const char *path = NULL;
    if (row->file != NO_FILE)
        memcpy(&path, (const char *)options + row->at, sizeof path);
    return path;
}

/* An output must not replace another output, nor what was read. */
static bool check_output(const struct options *options, const struct row *output)
{
    const char *path = file_of(options, output);
    for (const struct row *row = rows; row < rows + ROWS; row++) {
        const char *other = file_of(options, row);
        if (row == output || !other || !command_same_file(path, other))
            continue;
        command_complain("options --%s and --%s name the same file %s", output->name, row->name, path);
        return false;
    }
    return true;
}

static bool check_files(const struct options *options)
{
    for (const struct row *row = rows; row < rows + ROWS; row++) {
        if (row->file == WRITTEN_FILE && file_of(options, row) && !check_output(options, row))
            return false;
    }
    return true;
}

static bool check_inputs_given(const struct options *options, unsigned command)
{
    if (options->shape_given) {
        if (options->q || options->k || options->v)
            command_complain("option --shape stands in for --q, --k and --v: give one or the other");
        return !options->q && !options->k && !options->v;
    }
    const char *missing = !options->q ? "--q" : !options->k ? "--k" : !options->v ? "--v" : NULL;
    if (missing)
        command_complain("option %s is missing%s; `vkattn help %s` lists the options", missing,
                         command == OPTIONS_EXPLAIN ? " (or --shape)" : "", command == OPTIONS_RUN ? "run" : "explain");
    else if (options->type_given)
        command_complain("option --type goes with --shape; use --cast to change the type of files");
    return !missing && !options->type_given;
}

/* "option --lse-base goes with --lse" */
static bool goes_with(bool given, const char *name, bool needed_given, const char *needed)
{
    if (given && !needed_given)
        command_complain("option --%s goes with --%s, which is missing", name, needed);
    return !given || needed_given;
}

static bool check_align(const struct options *options)
{
    if (!options->causal || !options->align || options->causal == options->align)
        return true;
    const bool bottom_right = options->causal == VKATTN_BOTTOM_RIGHT;
    command_complain("option --align %s contradicts --causal %s", bottom_right ? "top-left" : "bottom-right",
                     bottom_right ? "bottom-right" : "top-left");
    return false;
}

static bool check_combination(const struct options *options, unsigned command)
{
    return check_inputs_given(options, command) && check_align(options) &&
           goes_with(options->q_segments, "q-segments", options->kv_segments, "kv-segments") &&
           goes_with(options->kv_segments, "kv-segments", options->q_segments, "q-segments") &&
           goes_with(options->mask_true != VKATTN_TRUE_UNSTATED, "mask-true", options->mask, "mask") &&
           goes_with(options->lse_base_given, "lse-base", options->lse, "lse") &&
           goes_with(options->tolerance_given, "tolerance", options->expect, "expect") && check_files(options);
}

bool options_parse(int argc, char **argv, unsigned command, struct options *options, int *exit_status)
{
    *options = (struct options){0};
    *exit_status = COMMAND_USAGE;
    if (!parse_arguments(argc, argv, command, options))
        return false;
    if (options->help) {
        print_help(command);
        *exit_status = COMMAND_OK;
        return false;
    }
    return check_combination(options, command);
}

vkattn_align options_align(const struct options *options)
{
    if (options->causal)
        return options->causal;
    return options->align ? options->align : VKATTN_TOP_LEFT;
}
