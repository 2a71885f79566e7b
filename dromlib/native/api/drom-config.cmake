# find_package(drom) gives the targets drom::drom, the shared library, and drom::static, which becomes a part of the program.
# drom::mpi also compiles drom_mpi.c into the program, which needs MPI::MPI_C beside it.
get_filename_component(DROM_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET drom::drom)
    add_library(drom::drom SHARED IMPORTED)
    set_target_properties(drom::drom PROPERTIES
        IMPORTED_LOCATION "${DROM_PREFIX}/lib/libdrom.so"
        IMPORTED_SONAME libdrom.so.0
        INTERFACE_INCLUDE_DIRECTORIES "${DROM_PREFIX}/include")
    add_library(drom::static STATIC IMPORTED)
    set_target_properties(drom::static PROPERTIES
        IMPORTED_LOCATION "${DROM_PREFIX}/lib/libdrom.a"
        INTERFACE_INCLUDE_DIRECTORIES "${DROM_PREFIX}/include"
        INTERFACE_LINK_LIBRARIES "-pthread;${CMAKE_DL_LIBS}")
    add_library(drom::mpi INTERFACE IMPORTED)
    set_target_properties(drom::mpi PROPERTIES
        INTERFACE_SOURCES "${DROM_PREFIX}/include/drom_mpi.c"
        INTERFACE_LINK_LIBRARIES drom::drom)
endif()
