/* Attention of one query over three keys, on the best device there is. V is the identity: O shows the weights. */
#include <stdio.h>
#include <vkattn/helper.h>

int main(void)
{
    const float q[4] = {1, -1, 2, 0.5f};
    const float k[3][4] = {{2, 0, 1, -1}, {0, 1, -1, 2}, {1, 1, 1, 1}};
    const float v[3][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    float o[3];

    vkattn_context *context;
    if (vkattn_open(NULL, &context) != VKATTN_OK) {
        fprintf(stderr, "%s\n", vkattn_last_error());
        return 1;
    }
    const vkattn_problem problem = {.len_q = 1, .len_kv = 3, .dim_qk = 4, .dim_v = 3};
    const vkattn_tensors tensors = {.q = q, .k = k, .v = v, .o = o};
    const vkattn_status status = vkattn_attend(context->vkattn, &problem, NULL, &tensors, NULL);
    if (status == VKATTN_OK)
        printf("%s attends with weights %.3f %.3f %.3f\n", context->listed.name, (double)o[0], (double)o[1],
               (double)o[2]);
    else
        fprintf(stderr, "%s: %s\n", vkattn_status_name(status), vkattn_last_error());
    vkattn_close(context);
    return status != VKATTN_OK;
}
