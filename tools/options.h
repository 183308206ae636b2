/* The options that `vkattn run` and `vkattn explain` share. */
#ifndef VKATTN_TOOLS_OPTIONS_H
#define VKATTN_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <vkattn/vkattn.h>

/* Bits: which subcommand is parsing. */
enum { OPTIONS_RUN = 1u << 0, OPTIONS_EXPLAIN = 1u << 1 };

enum { SHAPE_B, SHAPE_H, SHAPE_G, SHAPE_TQ, SHAPE_TK, SHAPE_D, SHAPE_DV, SHAPE_COUNT };

/* The most queries, and the most keys, that a problem may have (vkattn_problem). */
#define OPTIONS_MAX_LEN ((UINT32_C(1) << 29) - 1)

/* Texts point into argv; NULL, false and zero mean that the option was not given. */
struct options {
    const char *q, *k, *v, *out, *lse, *weights, *expect;
    const char *prefix, *mask, *bias, *alibi, *sinks;
    const char *kv_lengths, *q_lengths, *q_segments, *kv_segments;
    const char *device, *kernel, *tuning;
    vkattn_order layout;
    float scale, softcap, tolerance; /* a tolerance of --expect */
    vkattn_align causal, align;      /* unstated: not given; options_align() decides */
    bool window;
    int32_t left, right; /* of the window; -1: unbounded */
    vkattn_mask_true mask_true;
    bool lse_base_2;
    bool cast_given, lse_base_given, tolerance_given;
    vkattn_dtype cast;
    vkattn_access access;
    bool check, time, verbose, json, help;
    bool shape_given, type_given;
    uint32_t shape[SHAPE_COUNT];
    vkattn_dtype type; /* of a given shape */
};

/* Parse and check what can be checked without files. False when the command should end now with *exit_status: help was
 * printed, or a complaint. */
bool options_parse(int argc, char **argv, unsigned command, struct options *options, int *exit_status);

/* Alignment of the band and of ALiBi. */
vkattn_align options_align(const struct options *options);

#endif
