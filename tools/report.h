/* Problems and reports in words, for people. */
#ifndef VKATTN_TOOLS_REPORT_H
#define VKATTN_TOOLS_REPORT_H

#include <stdio.h>
#include <vkattn/helper.h>

#define REPORT_PROBLEM_SIZE 512u

/* "B=1 H=8 G=8 Tq=77 Tk=77 d=64 dv=64 f16, causal top-left, mask"; returns `text`. */
const char *report_problem(const vkattn_problem *problem, char text[REPORT_PROBLEM_SIZE]);

/* One line "  kernel: reason" for each kernel that refused. */
void report_refusals(FILE *file, const vkattn_report *report);

/* "address", "descriptor" or "auto". */
const char *report_access(vkattn_access access);

#endif
