/* _POSIX_C_SOURCE: isatty, stat. */
#define _POSIX_C_SOURCE 200809L

#include "command.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Back to the first column, and erase to the end of the line. */
#define ERASE_LINE "\r\033[K"

static bool on_terminal(void)
{
    return isatty(STDERR_FILENO) == 1;
}

void command_complain(const char *format, ...)
{
    if (on_terminal())
        fputs(ERASE_LINE, stderr);
    fputs("vkattn: ", stderr);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void command_progress(const char *format, ...)
{
    if (!on_terminal())
        return;
    fputs(ERASE_LINE, stderr);
    if (format) {
        va_list arguments;
        va_start(arguments, format);
        vfprintf(stderr, format, arguments);
        va_end(arguments);
    }
    fflush(stderr);
}

int command_status(vkattn_status status)
{
    switch (status) {
    case VKATTN_OK:
        return COMMAND_OK;
    case VKATTN_INVALID:
        return COMMAND_USAGE;
    case VKATTN_UNSUPPORTED:
    case VKATTN_NO_MEMORY:
        return COMMAND_REFUSED;
    case VKATTN_DEVICE_LOST:
    case VKATTN_FAILED:
        break;
    }
    return COMMAND_NO_DEVICE;
}

int command_fail(vkattn_status status)
{
    const char *sentence = vkattn_last_error();
    command_complain("%s", *sentence ? sentence : vkattn_status_name(status));
    return command_status(status);
}

void command_message(void *user, const char *text)
{
    (void)user;
    command_complain("note: %s", text);
}

/* The kernels that a device lets one choose are those that a report names. */
static bool knows_kernel(const vkattn_context *context, const char *kernel)
{
    const vkattn_problem any = {.len_q = 1, .len_kv = 1, .dim_qk = 1};
    vkattn_report report;
    char names[400] = "";
    size_t used = 0;
    vkattn_explain(context->vkattn, &any, NULL, &report);
    for (uint32_t i = 0; i < report.candidate_count; i++) {
        const char *name = report.candidates[i].kernel;
        if (strcmp(name, kernel) == 0)
            return true;
        const int length = snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", name);
        used += length > 0 && (size_t)length < sizeof names - used ? (size_t)length : 0;
    }
    command_complain("option --kernel: '%s' should be one of %s", kernel, names);
    return false;
}

static bool takes_tuning(const vkattn_open_info *info, const vkattn_context *context)
{
    const char *refusal = info->tuning ? vkattn_device_tuning_refusal(context->vkattn) : NULL;
    if (refusal)
        command_complain("option --tuning: %s", refusal);
    return refusal == NULL;
}

int command_open(const vkattn_open_info *info, const char *kernel, vkattn_context **context)
{
    *context = NULL;
    /* A part of every name: more likely a variable that a script did not set. */
    if (info->device && !*info->device) {
        command_complain("option --device: '' should be a number of `vkattn devices`, or a part of a name");
        return COMMAND_USAGE;
    }
    command_progress("opening the device ...");
    const vkattn_status status = vkattn_open(info, context);
    command_progress(NULL);
    if (status != VKATTN_OK) {
        /* Whatever the reason, a name that no device has included: on another machine the same command may work. */
        command_fail(status);
        return COMMAND_NO_DEVICE;
    }
    if (takes_tuning(info, *context) && (!kernel || knows_kernel(*context, kernel)))
        return COMMAND_OK;
    vkattn_close(*context);
    *context = NULL;
    return COMMAND_USAGE;
}

/* ---- Files ----------------------------------------------------------------------------------------------------- */

static bool same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The name behind the last slash; *folder is what lies before. False where the folder is not there. */
static bool split_path(const char *path, const char **name, struct stat *folder)
{
    char text[4096];
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path) + 1 : 0;
    *name = path + length;
    return snprintf(text, sizeof text, "%.*s", length, path) < (int)sizeof text &&
           stat(length ? text : ".", folder) == 0;
}

bool command_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    const char *name_a, *name_b;
    const bool a_exists = stat(a, &of_a) == 0, b_exists = stat(b, &of_b) == 0;
    /* A device or a pipe takes what is written and replaces nothing. */
    if (a_exists || b_exists)
        return a_exists && b_exists && S_ISREG(of_a.st_mode) && same_inode(&of_a, &of_b);
    return split_path(a, &name_a, &of_a) && split_path(b, &name_b, &of_b) && same_inode(&of_a, &of_b) &&
           strcmp(name_a, name_b) == 0;
}

/* More than a tuning ever has: the library refuses what is longer, by its length. */
enum { TUNING_BYTES = 1 << 17 };

bool command_read_tuning(const char *path, vkattn_open_info *info)
{
    if (!path)
        return true;
    FILE *file = fopen(path, "rb");
    char *bytes = malloc(TUNING_BYTES);
    if (!file || !bytes)
        command_complain("option --tuning: %s: %s", path, file ? "out of memory" : strerror(errno));
    const size_t size = file && bytes ? fread(bytes, 1, TUNING_BYTES, file) : 0;
    const bool failed = !file || !bytes || ferror(file);
    if (file && bytes && failed)
        command_complain("option --tuning: %s cannot be read: %s", path, strerror(errno));
    if (file)
        fclose(file);
    info->tuning = bytes;
    info->tuning_size = size;
    return !failed;
}

void command_free_tuning(vkattn_open_info *info)
{
    free((void *)(uintptr_t)info->tuning);
    info->tuning = NULL;
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

bool command_parse_float(const char *text, float *value)
{
    char *end;
    if (isspace((unsigned char)text[0]))
        return false;
    errno = 0;
    const float parsed = strtof(text, &end);
    /* A number too small for a float would silently become 0, which means something else. */
    const bool vanished = errno == ERANGE && parsed == 0;
    if (end == text || *end != '\0' || !isfinite(parsed) || vanished)
        return false;
    *value = parsed;
    return true;
}

/* One integer up to `stop`, a comma or the end. */
static bool parse_until(const char *text, char stop, int64_t least, int64_t most, int64_t *value, const char **next)
{
    char *end;
    if (!isdigit((unsigned char)text[text[0] == '-']))
        return false;
    errno = 0;
    const long long parsed = strtoll(text, &end, 10);
    if (*end != stop || errno == ERANGE || parsed < least || parsed > most)
        return false;
    *value = parsed;
    *next = end + 1;
    return true;
}

bool command_parse_integer(const char *text, int64_t least, int64_t most, int64_t *value)
{
    const char *next;
    return parse_until(text, '\0', least, most, value, &next);
}

bool command_parse_integers(const char *text, int64_t least, int64_t most, unsigned count, int64_t *values)
{
    for (unsigned i = 0; i < count; i++) {
        if (!parse_until(text, i + 1 < count ? ',' : '\0', least, most, &values[i], &text))
            return false;
    }
    return true;
}

static const char *const type_names[] = {[VKATTN_F32] = "f32", [VKATTN_F16] = "f16", [VKATTN_BF16] = "bf16"};

const char *command_type_name(vkattn_dtype type)
{
    return type_names[type];
}

bool command_parse_type(const char *text, vkattn_dtype *type)
{
    for (unsigned i = 0; i < sizeof type_names / sizeof *type_names; i++) {
        if (strcmp(text, type_names[i]) == 0) {
            *type = (vkattn_dtype)i;
            return true;
        }
    }
    return false;
}

const char *command_amount(double value, const char *unit, char text[32])
{
    static const char prefixes[] = " kMGTPE";
    unsigned prefix = 0;
    /* 999.5 would be printed as 1e+03. */
    while (value >= 999.5 && prefixes[prefix + 1]) {
        value /= 1000;
        prefix++;
    }
    if (prefix)
        snprintf(text, 32, "%.3g %c%s", value, prefixes[prefix], unit);
    else
        snprintf(text, 32, "%.3g %s", value, unit);
    return text;
}

bool command_parse_access(const char *text, vkattn_access *access)
{
    *access = strcmp(text, "address") == 0      ? VKATTN_ACCESS_ADDRESS
              : strcmp(text, "descriptor") == 0 ? VKATTN_ACCESS_DESCRIPTOR
                                                : VKATTN_ACCESS_AUTO;
    return *access != VKATTN_ACCESS_AUTO;
}
