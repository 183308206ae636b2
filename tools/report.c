#include "report.h"

#include "command.h"

#include <inttypes.h>
#include <stdarg.h>

/* A text that grows at its end and is cut where its room ends. */
struct text {
    char *at;
    size_t left;
};

static void append(struct text *text, const char *format, ...) COMMAND_PRINTF(2, 3);

static void append(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int count = vsnprintf(text->at, text->left, format, arguments);
    va_end(arguments);
    const size_t used = count < 0 ? 0 : (size_t)count < text->left ? (size_t)count : text->left - 1;
    text->at += used;
    text->left -= used;
}

static void append_types(struct text *text, const vkattn_problem *problem)
{
    const char *q = command_type_name(problem->q_type), *kv = command_type_name(problem->kv_type),
               *o = command_type_name(problem->o_type);
    if (problem->q_type == problem->kv_type && problem->q_type == problem->o_type)
        append(text, " %s", q);
    else
        append(text, " Q %s, K and V %s, O %s", q, kv, o);
}

static void append_band(struct text *text, const vkattn_problem *problem)
{
    const uint32_t flags = problem->flags;
    const char *align = problem->align == VKATTN_BOTTOM_RIGHT ? "bottom-right" : "top-left";
    if (flags & VKATTN_CAUSAL)
        append(text, ", causal");
    if (flags & VKATTN_LEFT)
        append(text, ", %" PRId32 " before", problem->left);
    if (flags & VKATTN_RIGHT)
        append(text, ", %" PRId32 " after", problem->right);
    if (flags & VKATTN_ALIBI)
        append(text, ", ALiBi");
    if (flags & (VKATTN_CAUSAL | VKATTN_LEFT | VKATTN_RIGHT | VKATTN_ALIBI))
        append(text, " (%s)", align);
}

static void append_parts(struct text *text, const vkattn_problem *problem)
{
    static const struct {
        uint32_t flag;
        const char *name;
    } parts[] = {
        {VKATTN_PREFIX, "prefix"},
        {VKATTN_KV_LENGTHS, "key lengths"},
        {VKATTN_Q_LENGTHS, "query lengths"},
        {VKATTN_SEGMENTS, "segments"},
        {VKATTN_BIAS, "bias"},
        {VKATTN_SINKS, "sinks"},
        {VKATTN_WRITE_LSE, "LSE"},
        {VKATTN_WRITE_WEIGHTS, "weights"},
    };
    if (problem->softcap != 0)
        append(text, ", soft cap %g", (double)problem->softcap);
    if (problem->mask_kind != VKATTN_MASK_NONE)
        append(text, ", mask");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (problem->flags & parts[i].flag)
            append(text, ", %s", parts[i].name);
    }
}

const char *report_problem(const vkattn_problem *problem, char buffer[REPORT_PROBLEM_SIZE])
{
    const uint32_t heads = problem->heads ? problem->heads : 1;
    struct text text = {buffer, REPORT_PROBLEM_SIZE};
    append(&text, "B=%" PRIu32 " H=%" PRIu32 " G=%" PRIu32 " Tq=%" PRIu32 " Tk=%" PRIu32 " d=%" PRIu32 " dv=%" PRIu32,
           problem->batch ? problem->batch : 1, heads, problem->kv_heads ? problem->kv_heads : heads, problem->len_q,
           problem->len_kv, problem->dim_qk, problem->dim_v ? problem->dim_v : problem->dim_qk);
    append_types(&text, problem);
    append_band(&text, problem);
    append_parts(&text, problem);
    return buffer;
}

void report_refusals(FILE *file, const vkattn_report *report)
{
    for (uint32_t i = 0; i < report->candidate_count; i++) {
        const vkattn_candidate *candidate = &report->candidates[i];
        if (candidate->reason[0])
            fprintf(file, "  %s: %s\n", candidate->kernel, candidate->reason);
    }
}

const char *report_access(vkattn_access access)
{
    return access == VKATTN_ACCESS_ADDRESS ? "address" : access == VKATTN_ACCESS_DESCRIPTOR ? "descriptor" : "auto";
}
