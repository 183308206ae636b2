/* What the library costs the host: a recording, and a plan whose pipelines exist. */
#ifndef VKATTN_TOOLS_HOSTCOST_H
#define VKATTN_TOOLS_HOSTCOST_H

#include <vkattn/helper.h>

struct hostcost {
    double record, plan; /* seconds, medians of 10,000 */
};

vkattn_status hostcost_measure(vkattn_context *context, const vkattn_options *options, struct hostcost *cost);

#endif
