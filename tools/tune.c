/* vkattn tune: measures the tiles of this machine's device on a few problems, and writes a file for --tuning. */
#define _GNU_SOURCE /* getopt_long, fsync */

#include "tuning.h"

#include "command.h"
#include "kernel.h"
#include "plan.h"
#include "report.h"
#include "ways.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_ROUNDS = 5, MOST_ROUNDS = 101 };

/* A row replaces the table's own only if it takes less than this part of its time. */
static const double clearly = 0.95;

struct tune_options {
    const char *device, *out;
    vkattn_access access;
    uint32_t width; /* 0: the usual ones */
    bool type_given;
    vkattn_dtype type;
    unsigned rounds;
    double seconds; /* after which no class is begun; 0: no limit */
    bool verbose;
};

struct tune {
    const struct tune_options *options;
    vkattn_context *context;
    bool addresses;
    double start;
    struct tuning tuning;
    double logs[TUNING_KERNELS]; /* of measured seconds by cost */
    unsigned log_counts[TUNING_KERNELS];
    unsigned left_out; /* classes, for want of time */
    struct ways ways;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Problems -------------------------------------------------------------------------------------------------- */

/* Large enough to fill a device, small enough for a CPU. A kernel that cuts the keys is for decoding. */
static vkattn_problem problem_for(const struct tune *tune, const struct kernel *kernel, uint32_t width,
                                  vkattn_dtype type)
{
    const uint32_t rows = tune->ways.by_cpu ? 512 : 2048;
    const vkattn_problem prefill = {
        .heads = 8, .len_q = rows, .len_kv = rows, .dim_qk = width, .q_type = type, .kv_type = type, .o_type = type};
    vkattn_problem decode = prefill;
    decode.heads = 32;
    decode.kv_heads = 8;
    decode.len_q = 1;
    decode.len_kv = tune->ways.by_cpu ? 4096 : 16384;
    return kernel->parts ? decode : prefill;
}

/* ---- Measuring ------------------------------------------------------------------------------------------------- */

/* Rows for CPU drivers compile for minutes on a GPU, and the other way round. */
static bool of_this_kind(const struct tune *tune, const struct tile *tile)
{
    const uint32_t cpu = 1u << CLASS_CPU | 1u << CLASS_CPU_OLD;
    const uint32_t own = vkattn_device_caps(tune->context->vkattn)->device_class;
    return (tile->classes & ((cpu >> own & 1) ? cpu : ~cpu)) != 0;
}

/* What a plan would take (see fits() of src/plan.c), whatever the class. */
static bool may_take(const struct tune *tune, const struct tile *tile, uint32_t width)
{
    return tile->max_dim >= width && (tune->addresses || !tile->addresses) && of_this_kind(tune, tile) &&
           vkattn_gives_subgroup(vkattn_device_caps(tune->context->vkattn), tile);
}

/* The table's own choice is the first way; false: the kernel is refused. */
static bool add_ways(struct tune *tune, const struct kernel *kernel, uint32_t width)
{
    vkattn_options options = {.kernel = kernel->name,
                              .access = tune->addresses ? VKATTN_ACCESS_ADDRESS : VKATTN_ACCESS_DESCRIPTOR};
    if (!ways_add(&tune->ways, &options))
        return false;
    for (uint32_t row = 1; row <= kernel->tile_count; row++) {
        options.tile = row;
        if (row != tune->ways.way[0].tile && may_take(tune, &kernel->tiles[row - 1], width))
            ways_add(&tune->ways, &options);
    }
    return true;
}

static void keep(struct tune *tune, uint32_t kernel, uint32_t width, vkattn_dtype type)
{
    const struct way *own = &tune->ways.way[0], *best = ways_best(&tune->ways);
    if (!best)
        return;
    const bool better = own->seconds == 0 || best->seconds < clearly * own->seconds;
    const struct way *taken = better ? best : own;
    if (better)
        tune->tuning.tiles[kernel][tune->addresses][type][vkattn_tuning_width(width)] = best->tile;
    tune->logs[kernel] += log(taken->seconds / taken->cost);
    tune->log_counts[kernel]++;
    printf("%-12s %-5s %5" PRIu32 " %10.3f %5" PRIu32 " %10.3f %5" PRIu32 " %5u  %s\n", vkattn_kernels[kernel]->name,
           command_type_name(type), width, own->seconds * 1e3, own->tile, best->seconds * 1e3, best->tile,
           tune->ways.count, better ? "changed" : "");
    fflush(stdout);
}

static vkattn_status tune_kernel(struct tune *tune, uint32_t kernel, uint32_t width, vkattn_dtype type)
{
    const vkattn_problem problem = problem_for(tune, vkattn_kernels[kernel], width, type);
    ways_init(&tune->ways, tune->context, &problem, tune->options->rounds);
    if (!add_ways(tune, vkattn_kernels[kernel], width))
        return VKATTN_OK;
    const vkattn_status status = ways_measure(&tune->ways);
    if (status == VKATTN_OK)
        keep(tune, kernel, width, type);
    return status;
}

static vkattn_status tune_class(struct tune *tune, uint32_t width, vkattn_dtype type)
{
    const double limit = tune->options->seconds;
    if (limit > 0 && now() - tune->start > limit) {
        tune->left_out++;
        return VKATTN_OK;
    }
    for (uint32_t kernel = 0; kernel < vkattn_kernel_count && kernel < TUNING_KERNELS; kernel++) {
        if (vkattn_kernels[kernel]->role != ROLE_FORWARD)
            continue;
        const vkattn_status status = tune_kernel(tune, kernel, width, type);
        if (status != VKATTN_OK)
            return status;
    }
    return VKATTN_OK;
}

static vkattn_status tune_all(struct tune *tune)
{
    static const uint32_t usual[] = {64, 128, 32, 256}; /* the most wanted first, should time run out */
    static const vkattn_dtype types[] = {VKATTN_F16, VKATTN_F32};
    const struct tune_options *o = tune->options;
    const unsigned widths = o->width ? 1 : sizeof usual / sizeof *usual;
    const unsigned type_count = o->type_given ? 1 : sizeof types / sizeof *types;
    vkattn_status status = VKATTN_OK;
    for (unsigned i = 0; status == VKATTN_OK && i < widths * type_count; i++)
        status = tune_class(tune, o->width ? o->width : usual[i / type_count],
                            o->type_given ? o->type : types[i % type_count]);
    return status;
}

/* Costs compare kernels with each other: the first that was measured keeps its own. */
static void keep_scales(struct tune *tune)
{
    double first = 0;
    bool found = false;
    for (uint32_t kernel = 0; kernel < TUNING_KERNELS; kernel++) {
        if (tune->log_counts[kernel] == 0)
            continue;
        const double mean = tune->logs[kernel] / tune->log_counts[kernel];
        first = found ? first : mean;
        found = true;
        const double scale = round(1000 * exp(mean - first));
        const uint32_t kept = scale < TUNING_LEAST_SCALE  ? TUNING_LEAST_SCALE
                              : scale > TUNING_MOST_SCALE ? TUNING_MOST_SCALE
                                                          : (uint32_t)scale;
        tune->tuning.scales[kernel][tune->addresses] = kept;
        printf("%s costs %.3f times what it says\n", vkattn_kernels[kernel]->name, kept / 1000.0);
    }
}

/* ---- The file -------------------------------------------------------------------------------------------------- */

enum { PATH_SIZE = 4096 };

/* What is written first, beside the file. */
static bool part_path(const char *path, char part[PATH_SIZE])
{
    const bool fits = snprintf(part, PATH_SIZE, "%s.part", path) < PATH_SIZE;
    if (!fits)
        command_complain("option --out: the name is too long");
    return fits;
}

/* Told before minutes of measuring are lost. */
static bool is_writable(const char *path)
{
    char part[PATH_SIZE];
    if (!path)
        return true;
    if (!part_path(path, part))
        return false;
    FILE *file = fopen(part, "wb");
    if (!file) {
        command_complain("option --out: %s cannot be written: %s", path, strerror(errno));
        return false;
    }
    fclose(file);
    remove(part);
    return true;
}

/* All of it in its place, or nothing. */
static bool replace_file(const char *path, const char *text, size_t size)
{
    char other[PATH_SIZE];
    if (!part_path(path, other))
        return false;
    FILE *file = fopen(other, "wb");
    bool good = file != NULL;
    good = good && fwrite(text, 1, size, file) == size && fflush(file) == 0 && fsync(fileno(file)) == 0;
    good = file && fclose(file) == 0 && good;
    good = good && rename(other, path) == 0;
    if (!good) {
        command_complain("%s cannot be written: %s", path, strerror(errno));
        if (file)
            remove(other);
    }
    return good;
}

static int write_out(const struct tune *tune)
{
    static char text[TUNING_MOST_BYTES];
    if (!tune->options->out)
        return COMMAND_OK;
    const size_t size = vkattn_tuning_write(&tune->tuning, vkattn_device_key(tune->context->vkattn), text, sizeof text);
    if (size == 0) {
        command_complain("the tuning has more entries than a file can hold");
        return COMMAND_USAGE;
    }
    return replace_file(tune->options->out, text, size) ? COMMAND_OK : COMMAND_USAGE;
}

static int run_tune(struct tune *tune)
{
    const struct caps *caps = vkattn_device_caps(tune->context->vkattn);
    const vkattn_access access = tune->options->access;
    tune->addresses = access ? access == VKATTN_ACCESS_ADDRESS : caps->addresses;
    tune->ways.by_cpu = tune->context->listed.type == VK_PHYSICAL_DEVICE_TYPE_CPU;
    printf("%s, %s %s, by %s; medians of %u rounds of %s\n", tune->context->listed.name, tune->context->listed.driver,
           tune->context->listed.driver_info, tune->addresses ? "address" : "descriptor", tune->options->rounds,
           tune->ways.by_cpu ? "processor time" : "device time");
    printf("%-12s %-5s %5s %10s %5s %10s %5s %5s\n", "kernel", "type", "width", "table's ms", "row", "best ms", "row",
           "rows");
    tune->start = now();
    const vkattn_status status = tune_all(tune);
    if (status != VKATTN_OK)
        return command_fail(status);
    keep_scales(tune);
    if (tune->left_out)
        printf("time ran out: %u classes keep the table's rows\n", tune->left_out);
    return write_out(tune);
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

static const char usage[] =
    "Usage: vkattn tune [--out FILE] [OPTION]...\n"
    "Measure the rows of the kernels' tile tables that this device does not refuse, on a prefill and a decode problem "
    "of\n"
    "each width and type, and write which are faster than the tables' own choice, and what the kernels cost. The file "
    "is\n"
    "for this device with this driver, and for --tuning of run, explain and bench, or vkattn_device_info.tuning.\n\n"
    "  --out FILE       written whole or not at all; default: only print\n"
    "  --device N|NAME  a number of `vkattn devices`, or a part of a name; default: the best\n"
    "  --access WAY     how tensors are reached: address or descriptor; default: the faster\n"
    "  --width D        32, 64, 96, 128, 192, 256, 384 or 576; default: 64, 128, 32 and 256\n"
    "  --type TYPE      f32, f16 or bf16; default: f16 and f32\n"
    "  --rounds N       1 to 101; default 5\n"
    "  --seconds N      begin no width and type after so many\n"
    "  --verbose        print the library's messages\n"
    "  --help           print this text\n\n" COMMAND_EXIT_HELP;

enum { OUT = 1, DEVICE, ACCESS, WIDTH, TYPE, ROUNDS, SECONDS, VERBOSE, HELP };

static bool bad_value(const char *option, const char *value, const char *wants)
{
    command_complain("option --%s: '%s' should be %s", option, value, wants);
    return false;
}

static bool is_width(int64_t width)
{
    for (unsigned i = 0; i < TUNING_WIDTHS; i++)
        if (width == vkattn_tuning_widths[i])
            return true;
    return false;
}

static bool store_number(struct tune_options *options, int option, const char *value)
{
    int64_t number;
    const bool is_number = command_parse_integer(value, 1, 86400, &number);
    switch (option) {
    case WIDTH:
        options->width = is_number ? (uint32_t)number : 0;
        return is_width(options->width) || bad_value("width", value, "32, 64, 96, 128, 192, 256, 384 or 576");
    case ROUNDS:
        options->rounds = is_number ? (unsigned)number : 0;
        return (is_number && number <= MOST_ROUNDS) || bad_value("rounds", value, "1 to 101");
    default:
        options->seconds = is_number ? (double)number : 0;
        return is_number || bad_value("seconds", value, "1 to 86400");
    }
}

static bool store(struct tune_options *options, int option, const char *value)
{
    switch (option) {
    case OUT:
        options->out = value;
        return true;
    case DEVICE:
        options->device = value;
        return true;
    case ACCESS:
        return command_parse_access(value, &options->access) || bad_value("access", value, "address or descriptor");
    case TYPE:
        options->type_given = true;
        return command_parse_type(value, &options->type) || bad_value("type", value, "f32, f16 or bf16");
    case VERBOSE:
        options->verbose = true;
        return true;
    case WIDTH:
    case ROUNDS:
    case SECONDS:
        return store_number(options, option, value);
    default:
        return false;
    }
}

/* False when the command ends now with *exit_status. */
static bool parse(int argc, char **argv, struct tune_options *options, int *exit_status)
{
    static const struct option longs[] = {{"out", required_argument, NULL, OUT},
                                          {"device", required_argument, NULL, DEVICE},
                                          {"access", required_argument, NULL, ACCESS},
                                          {"width", required_argument, NULL, WIDTH},
                                          {"type", required_argument, NULL, TYPE},
                                          {"rounds", required_argument, NULL, ROUNDS},
                                          {"seconds", required_argument, NULL, SECONDS},
                                          {"verbose", no_argument, NULL, VERBOSE},
                                          {"help", no_argument, NULL, HELP},
                                          {NULL, 0, NULL, 0}};
    int option;
    *options = (struct tune_options){.rounds = DEFAULT_ROUNDS};
    *exit_status = COMMAND_USAGE;
    optind = 1;
    while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (option == HELP) {
            fputs(usage, stdout);
            *exit_status = COMMAND_OK;
            return false;
        }
        if (!store(options, option, optarg))
            return false;
    }
    if (optind < argc)
        command_complain("unexpected argument '%s'", argv[optind]);
    return optind == argc;
}

int command_tune(int argc, char **argv)
{
    struct tune_options options;
    int exit_status;
    if (!parse(argc, argv, &options, &exit_status))
        return exit_status;
    struct tune *tune = calloc(1, sizeof *tune);
    if (!tune) {
        command_complain("out of memory");
        return COMMAND_REFUSED;
    }
    tune->options = &options;
    const vkattn_open_info info = {.device = options.device, .message = options.verbose ? command_message : NULL};
    exit_status = COMMAND_USAGE;
    if (is_writable(options.out))
        exit_status = command_open(&info, NULL, &tune->context);
    if (exit_status == COMMAND_OK) {
        exit_status = run_tune(tune);
        vkattn_close(tune->context);
    }
    free(tune);
    return exit_status;
}
