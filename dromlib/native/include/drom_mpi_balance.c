/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies: see drom_mpi_balance.h. */
#include "drom_mpi_balance.h"

#include <stdlib.h>

static const double TOLERANCE = 1.05; /* of a rank's time over the mean */

struct object {
    double work;
    long number;
};

/* Most work first, and the lower number among equals. */
static int compare(const void *left, const void *right)
{
    const struct object *a = left, *b = right;
    return a->work != b->work ? (a->work < b->work) - (a->work > b->work) : (a->number > b->number) - (a->number < b->number);
}

/* Return the objects in the order in which they are placed, for the caller to free. NULL: no memory. */
static struct object *sort(long objects, const double *work)
{
    struct object *sorted = malloc((size_t)objects * sizeof *sorted);
    for (long i = 0; sorted && i < objects; i++)
        sorted[i] = (struct object){work[i], i};
    if (sorted)
        qsort(sorted, (size_t)objects, sizeof *sorted, compare);
    return sorted;
}

/* Return the rank that finishes first if `work` is added to its own. */
static int earliest(int ranks, const double *speed, const double *has, double work)
{
    int best = 0;
    for (int rank = 1; rank < ranks; rank++)
        if ((has[rank] + work) / speed[rank] < (has[best] + work) / speed[best])
            best = rank;
    return best;
}

/* Place the objects that have no rank. */
static void place_rest(const struct object *sorted, long objects, int ranks, const double *speed, double *has, int *place)
{
    for (long k = 0; k < objects; k++) {
        int *at = &place[sorted[k].number];
        if (*at >= 0)
            continue;
        *at = earliest(ranks, speed, has, sorted[k].work);
        has[*at] += sorted[k].work;
    }
}

static void level(const struct object *sorted, long objects, int ranks, const double *speed, double *has, int *place)
{
    double all = 0, all_speed = 0;
    for (int rank = 0; rank < ranks; rank++) {
        all += has[rank];
        all_speed += speed[rank];
    }
    for (long k = 0; k < objects; k++) {
        int from = place[sorted[k].number], to = earliest(ranks, speed, has, sorted[k].work);
        double now = has[from] / speed[from];
        if (to == from || now <= TOLERANCE * all / all_speed || (has[to] + sorted[k].work) / speed[to] >= now)
            continue;
        has[from] -= sorted[k].work;
        has[to] += sorted[k].work;
        place[sorted[k].number] = to;
    }
}

void drom_mpi_refine(long objects, const double *work, int ranks, const double *speed, int *place)
{
    struct object *sorted = sort(objects, work);
    double *has = calloc((size_t)ranks, sizeof *has);
    for (long i = 0; sorted && has && i < objects; i++)
        if (place[i] >= 0 && place[i] < ranks)
            has[place[i]] += work[i];
        else
            place[i] = -1;
    if (sorted && has) {
        place_rest(sorted, objects, ranks, speed, has, place);
        level(sorted, objects, ranks, speed, has, place);
    }
    free(sorted);
    free(has);
}

void drom_mpi_greedy(long objects, const double *work, int ranks, const double *speed, int *place)
{
    for (long i = 0; i < objects; i++)
        place[i] = -1;
    drom_mpi_refine(objects, work, ranks, speed, place);
}
