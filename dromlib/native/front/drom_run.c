/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

int main(int argc, char **argv)
{
    return run_command("drom-run", argc, argv);
}
