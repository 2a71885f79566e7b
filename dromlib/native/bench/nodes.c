/* SPDX-License-Identifier: Apache-2.0 */
/* nodes HOSTFILE CYCLES EACH NODE... - how long it takes to add nodes and to release them, compared with MPI alone: prints for each
 * cycle the milliseconds of the longest malleability point while EACH ranks are spawned on each node, of the point in which these
 * are released, and of a plain MPI_Comm_spawn of as many ranks and its MPI_Intercomm_merge. Runs on the node `n1`, with that host
 * file. */
#include <drom_mpi.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char **nodes;
static int node_count, each, launched; /* ranks on each node, and launched on n1 */

static void write_hosts(const char *path, int count)
{
    char fresh[4096];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "w");
    if (!file)
        MPI_Abort(MPI_COMM_WORLD, 1);
    fprintf(file, "n1 slots=%d\n", launched);
    for (int i = 0; i < count; i++)
        fprintf(file, "%s slots=%d\n", nodes[i], each);
    fclose(file);
    if (rename(fresh, path) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

/* All ranks are on one node: emulated nodes share memory, where ranks of equal numbers would conflict. */
static double spawn_plainly(MPI_Comm comm, char *program)
{
    MPI_Comm children, all;
    MPI_Info info;
    char *words[] = {"plain", NULL};
    MPI_Info_create(&info);
    MPI_Info_set(info, "host", nodes[0]);
    MPI_Barrier(comm);
    double begin = MPI_Wtime();
    MPI_Comm_spawn(program, words, node_count * each, info, 0, comm, &children, MPI_ERRCODES_IGNORE);
    MPI_Intercomm_merge(children, 0, &all);
    double took = MPI_Wtime() - begin;
    MPI_Comm_free(&children);
    MPI_Comm_free(&all);
    MPI_Info_free(&info);
    return took;
}

static void be_spawned(MPI_Comm parent)
{
    MPI_Comm all;
    MPI_Intercomm_merge(parent, 1, &all);
    MPI_Comm_free(&parent);
    MPI_Comm_free(&all);
}

int main(int argc, char **argv)
{
    MPI_Comm parent;
    long cycle = 0;
    int is_grown = 0, outcome = 0, me, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (argc == 2) {
        be_spawned(parent);
        MPI_Finalize();
        return 0;
    }
    long cycles = atol(argv[2]);
    each = atoi(argv[3]);
    nodes = argv + 4;
    node_count = argc - 4;
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, 1);
    drom_mpi_add_value(m, &cycle, 1, MPI_LONG);
    drom_mpi_add_value(m, &is_grown, 1, MPI_INT);
    drom_mpi_add_value(m, &launched, 1, MPI_INT);
    if (parent == MPI_COMM_NULL) {
        MPI_Comm_size(MPI_COMM_WORLD, &launched);
        MPI_Comm_rank(MPI_COMM_WORLD, &me);
        if (me == 0)
            write_hosts(argv[1], node_count);
    }
    for (double longest = 0, grow = 0; cycle < cycles;) {
        double begin = MPI_Wtime();
        if ((outcome = drom_mpi_point(m)) == DROM_MPI_OVER)
            break;
        double took = MPI_Wtime() - begin;
        longest = took > longest ? took : longest;
        MPI_Comm_rank(drom_mpi_comm(m), &me);
        MPI_Comm_size(drom_mpi_comm(m), &ranks);
        if (!is_grown && ranks == launched + node_count * each) {
            is_grown = 1;
            grow = longest;
            if (me == 0)
                write_hosts(argv[1], 0);
        } else if (is_grown && ranks == launched) {
            double plain = spawn_plainly(drom_mpi_comm(m), argv[0]);
            is_grown = 0;
            longest = 0;
            cycle++;
            if (me == 0)
                printf("%.3f %.3f %.3f\n", 1e3 * grow, 1e3 * took, 1e3 * plain);
            if (me == 0 && cycle < cycles)
                write_hosts(argv[1], node_count);
        }
    }
    drom_mpi_finalize(m);
    MPI_Finalize();
    return 0;
}
