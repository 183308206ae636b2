/* What a device does at best: multiply-adds by bench/probe.comp and its kin, bytes by vkCmdCopyBuffer. */
#ifndef VKATTN_TOOLS_PROBE_H
#define VKATTN_TOOLS_PROBE_H

#include "timing.h"

/* PROBE_BASE is bench/probe.comp in one size, that ratios refer to; the others are the roofline's and grow until they
 * fill the device. */
enum probe_kind { PROBE_BASE, PROBE_F32, PROBE_F16, PROBE_MATRIX, PROBE_COPY, PROBE_KINDS };

struct probe;

/* On failure *probe is NULL. VKATTN_UNSUPPORTED, with a sentence, where the device cannot run the probe. */
vkattn_status probe_open(vkattn_context *context, enum probe_kind kind, struct probe **probe);
vkattn_status probe_run(struct probe *probe, struct sample *sample);
void probe_close(struct probe *probe);

/* Of one run: floating-point operations, or bytes read and written. */
double probe_work(const struct probe *probe);

/* "f32 multiply-add"; "FLOP" or "B". */
const char *probe_name(enum probe_kind kind);
const char *probe_unit(enum probe_kind kind);

#endif
