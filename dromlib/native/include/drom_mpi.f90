! SPDX-License-Identifier: Apache-2.0
! The functions of drom_mpi.h for Fortran, which are documented there. Compile this file with the program:
!
!     mpicc -c $(drom flags --mpi)
!     mpif90 drom_mpi.f90 program.f90 drom_mpi.o $(drom flags)
!
! Communicators and types are the integers of mpif.h and of the module mpi; with mpi_f08 they are its MPI_VAL. The columns of
! an array, whose elements lie side by side, are Fortran's first dimension, and its rows the second one.
module drom_mpi
    use, intrinsic :: iso_c_binding
    implicit none
    public

    enum, bind(c)
        enumerator :: drom_mpi_whole = 0, drom_mpi_block = 1, drom_mpi_cyclic = 2, drom_mpi_given = 3
    end enum

    enum, bind(c)
        enumerator :: drom_mpi_same = 0, drom_mpi_changed = 1, drom_mpi_over = 2
    end enum

    type, bind(c) :: drom_mpi_axis
        integer(c_long) :: size
        integer(c_int) :: split = drom_mpi_whole
        integer(c_long) :: block = 0, halo = 0
        type(c_funptr) :: bound = c_null_funptr
        type(c_ptr) :: context = c_null_ptr
    end type

    ! pack and unpack, or locate, make and drop, are procedures as in drom_mpi.h, strategy one as in drom_mpi_balance.h.
    type, bind(c) :: drom_mpi_kind
        integer(c_long) :: count
        type(c_funptr) :: pack = c_null_funptr, unpack = c_null_funptr
        type(c_ptr) :: context = c_null_ptr
        type(c_funptr) :: strategy = c_null_funptr
        real(c_double) :: speed = 0
        type(c_funptr) :: locate = c_null_funptr, make = c_null_funptr, drop = c_null_funptr
    end type

    interface
        type(c_ptr) function drom_mpi_init(comm, min_ranks) bind(c, name="drom_mpi_init_f")
            import :: c_int, c_ptr
            integer(c_int), value :: comm, min_ranks
        end function

        type(c_ptr) function drom_mpi_add_array(m, type, rows, columns) bind(c, name="drom_mpi_add_array_f")
            import :: c_int, c_ptr, drom_mpi_axis
            type(c_ptr), value :: m
            integer(c_int), value :: type
            type(drom_mpi_axis), value :: rows, columns
        end function

        type(c_ptr) function drom_mpi_add_constant(m, type, rows, columns) bind(c, name="drom_mpi_add_constant_f")
            import :: c_int, c_ptr, drom_mpi_axis
            type(c_ptr), value :: m
            integer(c_int), value :: type
            type(drom_mpi_axis), value :: rows, columns
        end function

        integer(c_int) function drom_mpi_add_value(m, value, count, type) bind(c, name="drom_mpi_add_value_f")
            import :: c_int, c_ptr
            type(c_ptr), value :: m, value
            integer(c_int), value :: count, type
        end function

        type(c_ptr) function drom_mpi_add_objects(m, kind) bind(c)
            import :: c_ptr, drom_mpi_kind
            type(c_ptr), value :: m
            type(drom_mpi_kind), value :: kind
        end function

        integer(c_long) function drom_mpi_next(o, object) bind(c)
            import :: c_long, c_ptr
            type(c_ptr), value :: o
            integer(c_long), value :: object
        end function

        integer(c_int) function drom_mpi_owner(o, object) bind(c)
            import :: c_int, c_long, c_ptr
            type(c_ptr), value :: o
            integer(c_long), value :: object
        end function

        integer(c_long) function drom_mpi_balance(o) bind(c)
            import :: c_long, c_ptr
            type(c_ptr), value :: o
        end function

        integer(c_int) function drom_mpi_point(m) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: m
        end function

        integer(c_int) function drom_mpi_want(m, min_ranks, max_ranks) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: m
            integer(c_int), value :: min_ranks, max_ranks
        end function

        integer(c_int) function drom_mpi_comm(m) bind(c, name="drom_mpi_comm_f")
            import :: c_int, c_ptr
            type(c_ptr), value :: m
        end function

        type(c_ptr) function drom_mpi_data(a) bind(c)
            import :: c_ptr
            type(c_ptr), value :: a
        end function

        type(c_ptr) function drom_mpi_memory(a) bind(c)
            import :: c_ptr
            type(c_ptr), value :: a
        end function

        integer(c_long) function drom_mpi_stride(a) bind(c)
            import :: c_long, c_ptr
            type(c_ptr), value :: a
        end function

        integer(c_long) function drom_mpi_count(a, axis) bind(c)
            import :: c_int, c_long, c_ptr
            type(c_ptr), value :: a
            integer(c_int), value :: axis
        end function

        integer(c_long) function drom_mpi_index(a, axis, own) bind(c)
            import :: c_int, c_long, c_ptr
            type(c_ptr), value :: a
            integer(c_int), value :: axis
            integer(c_long), value :: own
        end function

        subroutine drom_mpi_finalize(m) bind(c)
            import :: c_ptr
            type(c_ptr), value :: m
        end subroutine
    end interface
end module
