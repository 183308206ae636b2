/* The multiply-add rate of a device, measured by bench/probe.comp: what speeds are compared with. */
#ifndef VKATTN_TOOLS_PROBE_H
#define VKATTN_TOOLS_PROBE_H

#include "timing.h"

struct probe;

/* Floating-point operations of one run. */
double probe_flops(void);

/* On failure *probe is NULL. */
vkattn_status probe_open(vkattn_context *context, struct probe **probe);
vkattn_status probe_run(struct probe *probe, struct sample *sample);
void probe_close(struct probe *probe);

#endif
