/* vkattn bench --calibrate: what the kernels' cost() predicts beside what is measured. */
#ifndef VKATTN_TOOLS_CALIBRATE_H
#define VKATTN_TOOLS_CALIBRATE_H

#include <stdbool.h>
#include <vkattn/helper.h>

struct calibrate_options {
    vkattn_access access;
    const char *cases; /* as cases_wants takes it */
    unsigned rounds;
    double seconds; /* after which no case is begun; 0: no limit */
    bool json;
};

/* Measure, print, and return an exit status. */
int calibrate_run(vkattn_context *context, const struct calibrate_options *options);

#endif
