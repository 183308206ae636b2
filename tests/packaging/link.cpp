// The headers and the library from C++.
#include <cstring>
#include <vkattn/reference.h>

int main()
{
    vkattn_problem problem = vkattn_problem();
    problem.dim_qk = 1;
    return vkattn_version() == VKATTN_VERSION && vkattn_problem_check(&problem) == VKATTN_OK &&
                   std::strcmp(vkattn_status_name(VKATTN_OK), "VKATTN_OK") == 0
               ? 0
               : 1;
}
