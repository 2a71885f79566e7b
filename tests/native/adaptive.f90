! SPDX-License-Identifier: Apache-2.0
! adaptive MIN_RANKS STOP - the program of adaptive.c in Fortran.
program adaptive
    use mpi
    use drom_mpi
    implicit none

    integer(c_long), target :: step = 0, size = 61
    integer :: rank, me, ranks, outcome = drom_mpi_same, code, i, wrong = 0
    logical :: stops = .false.
    character(len=4096) :: argument, stop_file
    type(c_ptr) :: m, arrays(3), objects
    integer(c_long) :: object, held(0:9) = -1
    type(drom_mpi_axis) :: one, cyclic, block, given

    call get_command_argument(1, argument)
    call get_command_argument(2, stop_file)
    read (argument, *) i
    call MPI_Init(code)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
    m = drom_mpi_init(MPI_COMM_WORLD, i)
    if (.not. c_associated(m)) then
        call MPI_Finalize(code)
        stop 3, quiet=.true.
    end if
    one = drom_mpi_axis(size=1)
    cyclic = drom_mpi_axis(size=500, split=drom_mpi_cyclic, block=7)
    block = drom_mpi_axis(size=40, split=drom_mpi_block, halo=2)
    given = drom_mpi_axis(size=size, split=drom_mpi_given, bound=c_funloc(uneven), context=c_loc(size))
    arrays(1) = drom_mpi_add_array(m, MPI_DOUBLE_PRECISION, one, cyclic)
    arrays(2) = drom_mpi_add_array(m, MPI_DOUBLE_PRECISION, block, cyclic)
    arrays(3) = drom_mpi_add_array(m, MPI_DOUBLE_PRECISION, given, block)
    code = drom_mpi_add_value(m, c_loc(step), 1, MPI_INTEGER8)
    objects = drom_mpi_add_objects(m, drom_mpi_kind(count=10, pack=c_funloc(give), unpack=c_funloc(take)))
    do i = 1, 3
        call fill(arrays(i))
    end do
    do object = 0, 9
        if (drom_mpi_owner(objects, object) == rank) held(object) = object
    end do
    do while (.not. stops)
        outcome = drom_mpi_point(m)
        if (outcome == drom_mpi_over) exit
        do i = 1, 3
            call check(arrays(i))
        end do
        call MPI_Comm_rank(drom_mpi_comm(m), me, code)
        wrong = wrong + count([(held(object) /= merge(object, -1_c_long, drom_mpi_owner(objects, object) == me), object = 0, 9)])
        if (mod(step, 100_c_long) == 0) object = drom_mpi_balance(objects)
        call MPI_Comm_size(drom_mpi_comm(m), ranks, code)
        if (me == 0 .and. outcome == drom_mpi_changed) then
            print '(a, i0)', 'changed ', ranks
            flush (6)
        end if
        if (me == 0) inquire (file=trim(stop_file), exist=stops)
        call MPI_Bcast(stops, 1, MPI_LOGICAL, 0, drom_mpi_comm(m), code)
        step = step + 1
    end do
    if (outcome /= drom_mpi_over) then
        call MPI_Comm_rank(drom_mpi_comm(m), me, code)
        call MPI_Allreduce(MPI_IN_PLACE, wrong, 1, MPI_INTEGER, MPI_SUM, drom_mpi_comm(m), code)
        if (me == 0) print '(i0, a)', wrong, ' wrong'
    end if
    call drom_mpi_finalize(m)
    call MPI_Finalize(code)
    if (wrong /= 0) stop 1, quiet=.true.

contains

    integer(c_long) function uneven(context, part, parts) bind(c)
        type(c_ptr), value :: context
        integer(c_int), value :: part, parts
        integer(c_long), pointer :: indices

        call c_f_pointer(context, indices)
        uneven = indices * part * part / (parts * parts)
    end function

    integer(c_long) function give(context, object, bytes) bind(c)
        type(c_ptr), value :: context, bytes
        integer(c_long), value :: object
        integer(c_long), pointer :: message

        give = c_sizeof(object)
        if (.not. c_associated(bytes) .or. c_associated(context)) return
        call c_f_pointer(bytes, message)
        message = held(object)
        held(object) = -1
    end function

    subroutine take(context, object, bytes, length) bind(c)
        type(c_ptr), value :: context, bytes
        integer(c_long), value :: object, length
        integer(c_long), pointer :: message

        call c_f_pointer(bytes, message)
        if (length == c_sizeof(object) .and. .not. c_associated(context)) held(object) = message
    end subroutine

    ! The own elements of an array: columns are the first dimension.
    function own(a) result(elements)
        type(c_ptr), intent(in) :: a
        real(c_double), pointer :: elements(:, :)

        call c_f_pointer(drom_mpi_data(a), elements, [drom_mpi_stride(a), drom_mpi_count(a, 0)])
        elements => elements(1:drom_mpi_count(a, 1), :)
    end function

    real(c_double) function number(a, j, i)
        type(c_ptr), intent(in) :: a
        integer(c_long), intent(in) :: j, i

        number = real(drom_mpi_index(a, 0, i - 1) * 1000 + drom_mpi_index(a, 1, j - 1), c_double)
    end function

    subroutine fill(a)
        type(c_ptr), intent(in) :: a
        real(c_double), pointer :: elements(:, :)
        integer(c_long) :: i, j

        elements => own(a)
        do i = 1, ubound(elements, 2)
            do j = 1, ubound(elements, 1)
                elements(j, i) = number(a, j, i)
            end do
        end do
    end subroutine

    subroutine check(a)
        type(c_ptr), intent(in) :: a
        real(c_double), pointer :: elements(:, :)
        integer(c_long) :: i, j

        elements => own(a)
        do i = 1, ubound(elements, 2)
            do j = 1, ubound(elements, 1)
                if (elements(j, i) /= number(a, j, i) + real(step, c_double)) wrong = wrong + 1
                elements(j, i) = elements(j, i) + 1
            end do
        end do
    end subroutine
end program
