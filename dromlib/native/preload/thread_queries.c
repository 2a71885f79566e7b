/* SPDX-License-Identifier: Apache-2.0 */
#include "thread_queries.h"

#include <stddef.h>

_Thread_local char calling_thread;

static bool is_owner(struct thread_queries *q)
{
    const void *owner = __atomic_load_n(&q->owner, __ATOMIC_RELAXED), *none = NULL;
    return owner == &calling_thread ||
           (!owner && __atomic_compare_exchange_n(&q->owner, &none, &calling_thread, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

int freeze_number(struct thread_queries *q)
{
    int reported = __atomic_load_n(&q->reported, __ATOMIC_RELAXED);
    while (reported > 0) {
        int kept = __atomic_load_n(&q->turn, __ATOMIC_RELAXED) ? -reported : -WHOLE;
        if (__atomic_compare_exchange_n(&q->reported, &reported, kept, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            reported = kept;
    }
    return -reported;
}

/* Change the number, in the owner. Return the one in use then: another thread may have frozen it meanwhile. */
static int change(struct thread_queries *q, int number)
{
    int reported = __atomic_load_n(&q->reported, __ATOMIC_RELAXED);
    while (reported > 0 && reported != number)
        if (__atomic_compare_exchange_n(&q->reported, &reported, number, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            reported = number;
    return reported < 0 ? -reported : reported;
}

void record_first_query(struct thread_queries *q, struct place *place, struct place *turn)
{
    struct place *none = NULL;
    uint64_t never = 0, round = __atomic_load_n(&q->round, __ATOMIC_RELAXED);
    if (__atomic_compare_exchange_n(&place->since, &never, round, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        place->next = __atomic_load_n(&q->places, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&q->places, &place->next, place, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            ;
        __atomic_compare_exchange_n(&q->turn, &none, turn, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&place->last, round, __ATOMIC_RELAXED);
}

/* Record a call outside regions. Its number is used in regions, so a region cannot begin rounds any more. */
static void record_call(struct thread_queries *q, struct place *place)
{
    q->forked &= q->turn != NULL;
    record_first_query(q, place, place);
    q->kept |= q->turn->forked;
}

/* Begin the next round if this place does so. Return whether the number may change. */
static bool end_round(struct thread_queries *q, const struct place *place)
{
    if (q->kept || place != q->turn || !q->forked)
        return false;
    bool repeated = true;
    for (const struct place *each = __atomic_load_n(&q->places, __ATOMIC_ACQUIRE); each; each = each->next) {
        q->kept |= each->last != q->round;
        repeated &= each->since != q->round;
    }
    __atomic_store_n(&q->round, q->round + 1, __ATOMIC_RELAXED);
    q->forked = false;
    return repeated && !q->kept;
}

int update_region_size(struct thread_queries *q, struct place *place, int grant)
{
    if (!is_owner(q))
        return freeze_number(q);
    int number = q->reported;
    if (!q->turn)
        number = place->forked ? grant : WHOLE;
    else if (end_round(q, place))
        number = grant;
    place->forked = q->forked = true;
    __atomic_store_n(&q->region, place, __ATOMIC_RELAXED);
    return change(q, number);
}

int call_size(struct thread_queries *q, struct place *place, int grant)
{
    if (!is_owner(q))
        return freeze_number(q);
    int number = q->reported;
    if (!q->turn)
        number = WHOLE;
    else if (end_round(q, place))
        number = grant;
    record_call(q, place);
    return change(q, number);
}

void record_set_number(struct thread_queries *q, struct place *place, int number)
{
    if (!is_owner(q))
        return;
    record_call(q, place);
    change(q, number);
}
