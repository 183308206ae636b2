/* vkattn explain: what a problem gets and why. */
#include "command.h"
#include "inputs.h"
#include "json.h"
#include "options.h"
#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Text ------------------------------------------------------------------------------------------------------ */

static void print_candidates(const vkattn_report *report)
{
    printf("\n%-14s %-11s %5s %12s  %s\n", "kernel", "access", "tile", "cost", "");
    for (uint32_t i = 0; i < report->candidate_count; i++) {
        const vkattn_candidate *c = &report->candidates[i];
        if (c->reason[0])
            printf("%-14s %-11s %5s %12s  refused: %s\n", c->kernel, report_access(c->access), "-", "-", c->reason);
        else
            printf("%-14s %-11s %5" PRIu32 " %12.4g  %s\n", c->kernel, report_access(c->access), c->tile, c->cost,
                   (int64_t)i == report->chosen ? "chosen" : "");
    }
}

static void print_text(const vkattn_context *context, const vkattn_problem *problem, const vkattn_report *report)
{
    char text[REPORT_PROBLEM_SIZE], amount[32];
    printf("device      %s\n", context->listed.name);
    printf("problem     %s\n", report_problem(problem, text));
    if (report->chosen >= 0) {
        const vkattn_candidate *chosen = &report->candidates[report->chosen];
        printf("kernel      %s, by %s; tile %" PRIu32 "%s%s\n", chosen->kernel, report_access(chosen->access),
               chosen->tile, report->tile[0] ? ": " : "", report->tile);
        printf("steps       %" PRIu32 "\n", report->step_count);
    } else {
        printf("kernel      none\n");
    }
    printf("work        %s\n", command_amount(report->flops, "FLOP", amount));
    printf("moved       %s at least\n", command_amount(report->bytes_moved, "B", amount));
    printf("scores      %s that are never written\n", command_amount(report->score_bytes, "B", amount));
    printf("workspace   %" PRIu64 " bytes\n", report->workspace_size);
    print_candidates(report);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static void json_problem(struct json *json, const vkattn_problem *problem)
{
    char text[REPORT_PROBLEM_SIZE];
    json_open_object(json, "problem");
    json_string(json, "text", report_problem(problem, text));
    json_unsigned(json, "batch", problem->batch);
    json_unsigned(json, "heads", problem->heads);
    json_unsigned(json, "kv_heads", problem->kv_heads);
    json_unsigned(json, "len_q", problem->len_q);
    json_unsigned(json, "len_kv", problem->len_kv);
    json_unsigned(json, "dim_qk", problem->dim_qk);
    json_unsigned(json, "dim_v", problem->dim_v);
    json_string(json, "q_type", command_type_name(problem->q_type));
    json_string(json, "kv_type", command_type_name(problem->kv_type));
    json_string(json, "o_type", command_type_name(problem->o_type));
    json_close(json);
}

static void json_candidates(struct json *json, const vkattn_report *report)
{
    json_open_array(json, "kernels");
    for (uint32_t i = 0; i < report->candidate_count; i++) {
        const vkattn_candidate *c = &report->candidates[i];
        json_open_object(json, NULL);
        json_string(json, "kernel", c->kernel);
        json_string(json, "access", report_access(c->access));
        json_bool(json, "chosen", (int64_t)i == report->chosen);
        if (c->reason[0]) {
            json_string(json, "refused", c->reason);
        } else {
            json_unsigned(json, "tile", c->tile);
            json_number(json, "cost", c->cost);
        }
        json_close(json);
    }
    json_close(json);
}

static void print_json(const vkattn_context *context, const vkattn_problem *problem, const vkattn_report *report)
{
    struct json json = {.file = stdout};
    json_open_object(&json, NULL);
    json_string(&json, "device", context->listed.name);
    json_problem(&json, problem);
    json_string(&json, "kernel", report->chosen >= 0 ? report->candidates[report->chosen].kernel : NULL);
    json_string(&json, "tile", report->chosen >= 0 ? report->tile : NULL);
    json_unsigned(&json, "steps", report->step_count);
    json_number(&json, "flops", report->flops);
    json_number(&json, "bytes_moved", report->bytes_moved);
    json_number(&json, "score_bytes", report->score_bytes);
    json_unsigned(&json, "workspace_size", report->workspace_size);
    json_candidates(&json, report);
    json_close(&json);
}

/* ---- Commands -------------------------------------------------------------------------------------------------- */

static int explain(const struct options *options, const vkattn_context *context, const vkattn_problem *problem)
{
    const vkattn_options plan_options = {.kernel = options->kernel, .access = options->access};
    vkattn_report report;
    const vkattn_status status = vkattn_explain(context->vkattn, problem, &plan_options, &report);
    /* A refusal is an answer too: the report says why. */
    if (status == VKATTN_OK || status == VKATTN_UNSUPPORTED) {
        if (options->json)
            print_json(context, problem, &report);
        else
            print_text(context, problem, &report);
    }
    return status == VKATTN_OK ? COMMAND_OK : command_fail(status);
}

int command_explain(int argc, char **argv)
{
    struct options options;
    struct inputs inputs = {0};
    vkattn_context *context = NULL;
    int exit_status;
    if (!options_parse(argc, argv, OPTIONS_EXPLAIN, &options, &exit_status))
        return exit_status;
    exit_status = COMMAND_USAGE;
    vkattn_open_info info = {.device = options.device, .message = options.verbose ? command_message : NULL};
    if (command_read_tuning(options.tuning, &info) && inputs_load(&options, &inputs))
        exit_status = command_open(&info, options.kernel, &context);
    if (exit_status == COMMAND_OK)
        exit_status = explain(&options, context, &inputs.problem);
    if (context)
        vkattn_close(context);
    command_free_tuning(&info);
    inputs_free(&inputs);
    return exit_status;
}
