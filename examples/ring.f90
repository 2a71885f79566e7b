! SPDX-License-Identifier: Apache-2.0
! ring.f90 - sums of neighbours on a ring, modulo a prime: memory-bound, in Fortran with OpenMP, malleable between two steps.
!
!     gfortran -O2 -fopenmp drom.f90 ring.f90 -ldrom -o ring
!     ring [--size N] [--steps K]
!
! Each value becomes the sum of its two neighbours, so the total doubles at each step: it is known, and one value left out shows.
! Exit 0: right. 1: wrong. 2: wrong usage.
program ring
    use drom ! malleable
    use omp_lib
    use, intrinsic :: iso_fortran_env, only: int64, error_unit
    implicit none

    integer(int64), parameter :: prime = 1000003_int64
    integer(int64) :: n = 1000000, steps = 600, step, i, expected, total
    integer(int64), allocatable :: now(:), next(:), spare(:)
    integer :: most
    character(len=5) :: verdict
    type(c_ptr) :: handle ! malleable

    call read_options()
    most = omp_get_max_threads() ! buffers may be sized by it: never go above
    handle = drom_attach()       ! malleable
    call malleability_point()    ! malleable: before the first touch, which decides where the pages are
    allocate (now(n), next(n))
    expected = 0
    !$omp parallel do schedule(static) reduction(+ : expected)
    do i = 1, n
        now(i) = mod(i * i, prime)
        next(i) = 0
        expected = expected + now(i)
    end do

    do step = 1, steps
        !$omp parallel do schedule(static)
        do i = 1, n
            next(i) = mod(now(merge(n, i - 1, i == 1)) + now(merge(1_int64, i + 1, i == n)), prime)
        end do
        call move_alloc(now, spare)
        call move_alloc(next, now)
        call move_alloc(spare, next)
        expected = mod(2 * expected, prime)
        call drom_progress(handle, step) ! malleable
        call malleability_point()        ! malleable
    end do
    call drom_detach(handle) ! malleable

    total = 0
    !$omp parallel do schedule(static) reduction(+ : total)
    do i = 1, n
        total = total + now(i)
    end do
    total = mod(total, prime)
    verdict = merge('ok   ', 'WRONG', total == mod(expected, prime))
    print '(a, i0, a, i0, a, i0, 2a)', 'ring: n=', n, ' steps=', steps, ' total ', total, ' ', trim(verdict)
    if (verdict /= 'ok') stop 1, quiet=.true.

contains

    ! malleable begin
    subroutine malleability_point()
        type(drom_grant), save :: grant
        integer :: rc

        if (drom_poll(handle) == 0) return
        if (drom_take(handle, grant) <= 0) return
        call omp_set_num_threads(min(int(grant%ncpus), most))
        rc = omp_pause_resource_all(omp_pause_soft) ! or surplus threads would spin on, on the CPUs that are kept
        rc = drom_apply(handle, grant)              ! binds every thread, then acknowledges
    end subroutine
    ! malleable end

    subroutine read_options()
        character(len=32) :: option, text
        integer :: argument, rc

        do argument = 1, command_argument_count(), 2
            call get_command_argument(argument, option)
            call get_command_argument(argument + 1, text)
            rc = 1
            if (option == '--size') read (text, *, iostat=rc) n
            if (option == '--steps') read (text, *, iostat=rc) steps
            if (rc /= 0 .or. n < 3 .or. n > 1000000000_int64 .or. steps < 1) then
                write (error_unit, '(a)') 'ring: usage: ring [--size N] [--steps K], N from 3 to a billion and K at least 1'
                stop 2, quiet=.true.
            end if
        end do
    end subroutine
end program
