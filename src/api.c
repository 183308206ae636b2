/* Public functions that are neither of Vulkan nor of one file: check, call, return. */
#include "plan.h"
#include "status.h"

#include <string.h>

vkattn_status vkattn_explain_sized(const vkattn_device *device, const vkattn_problem *problem, size_t problem_size,
                                   const vkattn_options *options, size_t options_size, vkattn_report *report,
                                   size_t report_size)
{
    struct problem canonical;
    struct plan plan;
    vkattn_options copy = {0};
    vkattn_report full;
    REQUIRE(report, "report is NULL");
    memset(report, 0, report_size);
    REQUIRE(device, "device is NULL");
    if (options)
        TRY(vkattn_copy_sized(&copy, sizeof copy, options, options_size, "options"));
    TRY(vkattn_problem_canonical(problem, problem_size, &canonical));
    const vkattn_status status = vkattn_plan_choose(&canonical, vkattn_device_caps(device), &copy, &plan, &full);
    if (status != VKATTN_INVALID)
        memcpy(report, &full, report_size < sizeof full ? report_size : sizeof full);
    return status;
}
