/* What the subcommands of `vkattn` share: exit statuses, entry points, messages, opening a device. */
#ifndef VKATTN_TOOLS_COMMAND_H
#define VKATTN_TOOLS_COMMAND_H

#include <stdbool.h>
#include <stdint.h>
#include <vkattn/helper.h>

/* Exit statuses; `vkattn --help` lists them. */
enum command_exit {
    COMMAND_OK = 0,
    COMMAND_WRONG = 1,     /* a result is outside its bound, or its --tolerance */
    COMMAND_USAGE = 2,     /* bad usage, bad input, or an output that cannot be written */
    COMMAND_NO_DEVICE = 3, /* no usable device, or it failed */
    COMMAND_REFUSED = 4    /* valid, but this device or the forced kernel cannot do it */
};

#define COMMAND_EXIT_HELP                                         \
    "Exit status:\n"                                              \
    "  0  done, and right where it was checked\n"                 \
    "  1  wrong result\n"                                         \
    "  2  bad usage or input, or a file that cannot be written\n" \
    "  3  no usable device\n"                                     \
    "  4  valid, but refused by this device or the forced kernel; the reason is on standard error\n"

/* Subcommands. argv[0] is "vkattn NAME"; each understands --help. They return an exit status. */
int command_run(int argc, char **argv);
int command_explain(int argc, char **argv);
int command_devices(int argc, char **argv);
int command_kernels(int argc, char **argv);
int command_check(int argc, char **argv); /* check.c */
int command_bench(int argc, char **argv); /* bench.c */
int command_tune(int argc, char **argv);

#if defined(__GNUC__)
#define COMMAND_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define COMMAND_PRINTF(text, first)
#endif

/* "vkattn: sentence" on standard error, over a progress line if there is one. */
void command_complain(const char *format, ...) COMMAND_PRINTF(1, 2);

/* Replace the progress line, when standard error is a terminal; NULL removes it. */
void command_progress(const char *format, ...) COMMAND_PRINTF(1, 2);

/* The exit status of a call on an open device. */
int command_status(vkattn_status status);

/* Complain with vkattn_last_error() and return command_status(status). */
int command_fail(vkattn_status status);

/* A vkattn_message_fn that prints to standard error. */
void command_message(void *user, const char *text);

/* Open a device, and see that it takes the tuning of `info` and knows the kernel that is forced (NULL: none). Complains
 * and returns COMMAND_NO_DEVICE, or COMMAND_USAGE where an option is wrong. */
int command_open(const vkattn_open_info *info, const char *kernel, vkattn_context **context);

/* Read the file of a --tuning (NULL: there is none) into `info`; free info->tuning in either case. False: it cannot be
 * read, and that was said. */
bool command_read_tuning(const char *path, vkattn_open_info *info);
void command_free_tuning(vkattn_open_info *info);

/* Whether two paths name one regular file, which need not exist yet. */
bool command_same_file(const char *a, const char *b);

/* Strict numbers: the whole text, no blanks, in range; else false. NaN and infinity are no numbers here. */
bool command_parse_float(const char *text, float *value);
bool command_parse_integer(const char *text, int64_t least, int64_t most, int64_t *value);
/* Exactly `count` integers with commas between them. */
bool command_parse_integers(const char *text, int64_t least, int64_t most, unsigned count, int64_t *values);

/* "f32", "f16", "bf16". */
const char *command_type_name(vkattn_dtype type);
bool command_parse_type(const char *text, vkattn_dtype *type);

/* "address" or "descriptor". */
bool command_parse_access(const char *text, vkattn_access *access);

/* "12.3 GB" and the like: a number with a decimal prefix. Returns `text`. */
const char *command_amount(double value, const char *unit, char text[32]);

#endif
